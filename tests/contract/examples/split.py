"""A method whose network is cut between sites and server, as FedSIS's is: each batch, tokens go up, gradients back.

Sites hold the tokenizer and the head, the server the blocks and the adapter. The adapter learns from every batch, the
blocks at the end of a round from what all sites' batches have left in them; tokenizers and heads are averaged now and
then.
"""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedvisage.federation.method import EXAMPLES, LOSS, Call, Home, Member, Method, Prediction, Upload
from fedvisage.federation.server import Conversation, Server
from fedvisage.federation.site import Site
from fedvisage.federation.wire.message import Message
from fedvisage.nn.inputs import CHANNELS
from fedvisage.recipe import MethodOptions, Recipe

WIDTH, PATCH = 16, 4


class Options(MethodOptions):
    """After how many rounds tokenizers and heads are averaged."""

    unify_every: int = 2


def network(recipe: Recipe) -> nn.ModuleDict:
    patches = nn.Conv2d(CHANNELS[recipe.input.colour], WIDTH, PATCH, stride=PATCH)
    block = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.1, batch_first=True)
    return nn.ModuleDict(
        {
            "tokenizer": nn.Sequential(patches, nn.Flatten(2), Transposed()),
            "blocks": nn.TransformerEncoder(block, 2, enable_nested_tensor=False),
            "adapter": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()),
            "head": nn.Linear(WIDTH, 1),
        }
    )


class Transposed(nn.Module):
    """Tokens before channels."""

    def forward(self, values: Tensor) -> Tensor:
        return values.transpose(1, 2)


def tokens(site: Site, message: Message) -> Message:
    """Take the gradient of the last tokens, if there were any, and return the next batch's."""
    if message:
        site.step(site.optimizer("tokenizer"), site.held["tokens"], message["gradient"])
    site.held["batch"] = site.next_batch()
    site.held["tokens"] = site.net["tokenizer"](site.held["batch"].images)
    return {"tokens": site.held["tokens"]}


def head(site: Site, message: Message) -> Message:
    """Learn from the pseudo-token, and return the gradient of it."""
    pseudo = message["pseudo"].requires_grad_()
    logits = site.net["head"](pseudo).squeeze(1)
    site.step(site.optimizer("head"), binary_cross_entropy_with_logits(logits, site.held["batch"].labels))
    assert pseudo.grad is not None
    return {"gradient": pseudo.grad}


def finish(site: Site, message: Message) -> Message:
    site.step(site.optimizer("tokenizer"), site.held["tokens"], message["gradient"])
    return site.statistics()


def unify(site: Site, message: Message) -> Message:
    return site.tensors("tokenizer", "head")


def adopt(site: Site, message: Message) -> Message:
    site.load(message)
    return {}


def token_shape(recipe: Recipe) -> tuple[int, ...]:
    return (-1, (recipe.input.size // PATCH) ** 2, WIDTH)


def server(s: Server) -> Iterator[None]:
    for number in s.rounds():
        with s.quorum():
            for name in s.present:
                with s.visit(name) as site:
                    learn(s, site)
            s.step("blocks", scale=1 / len(s.present))
            if number % s.recipe.options(Options).unify_every == 0 or number == s.recipe.training.rounds:
                shared = s.reduce("unify").value
                s.load(shared)
                s.ask("adopt", shared)
        yield


def learn(s: Server, site: Conversation) -> None:
    """Go through one site's batches of a round."""
    up: Message = {}
    for _ in range(s.recipe.training.local.batches or 1):
        tokens = site.ask("tokens", up)["tokens"].requires_grad_()
        pseudo = s.net["adapter"](s.net["blocks"](tokens).mean(dim=1))
        pseudo.backward(site.ask("head", {"pseudo": pseudo.detach()}, like={"gradient": pseudo})["gradient"])
        s.step("adapter")
        assert tokens.grad is not None
        up = {"gradient": tokens.grad}
    site.ask("finish", up)


def predict(member: Member) -> Tensor:
    net = member.net
    pseudo = net["adapter"](net["blocks"](net["tokenizer"](member.images)).mean(dim=1))
    logits: Tensor = net["head"](pseudo)
    return logits.squeeze(1)


BACK = Upload("gradient", "gradient", shape=token_shape)

METHOD = Method(
    name="split",
    title="Split",
    paper="none",
    task="pad",
    options=Options,
    network=network,
    home={"tokenizer": Home.SITE, "blocks": Home.SERVER, "adapter": Home.SERVER, "head": Home.SITE},
    calls={
        "tokens": Call(
            tokens, (Upload("tokens", "activation", shape=token_shape),), takes=lambda _: (BACK,), repeats=True
        ),
        "head": Call(
            head,
            (Upload("gradient", "gradient", shape=(-1, WIDTH)),),
            takes=lambda _: (Upload("pseudo", "activation", shape=(-1, WIDTH)),),
            repeats=True,
        ),
        "finish": Call(finish, (EXAMPLES, LOSS), takes=lambda _: (BACK,)),
        "unify": Call(unify, (Upload("weights", "weights", parts=("tokenizer", "head")),)),
        "adopt": Call(adopt, ()),
    },
    server=server,
    prediction=Prediction(predict),
    delivered=("tokenizer", "blocks", "adapter", "head"),
)
