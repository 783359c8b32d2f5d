"""FedAvg: every site trains the model that the server lends, and the server takes the mean.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1. On ViT-H it is the baseline of FedSIS (§3.2, Eq. 2–3), on a
backbone for faces the one of C.-T. Liu et al., "FedFR", AAAI 2022 ("Federated Learning", steps 1 to 4): CosFace on the
site's own classes, whose centres W stay at the site. There a site with one identity is refused: a softmax over one
class has no gradient.

Deviations from the papers: all sites do the recipe's local work. FedFR does not say how W begins; here with the mean
features of each identity under the model of the site's first turn, as in its authors' released code
(``centres: random`` is the other choice).
"""

from fedvisage.federation.method import Method
from fedvisage.methods import averaging
from fedvisage.methods.model import Model

PAPER = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017"


def fedavg(model: Model) -> Method:
    """Return federated averaging of a model."""
    options = averaging.options_on(model)
    return averaging.on_model(model, options, name="fedavg", title="FedAvg", paper=PAPER)
