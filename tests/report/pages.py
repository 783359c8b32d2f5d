"""The elements and the text of a page, and whether its tags are closed in order."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}
Attributes = list[tuple[str, str | None]]


class Page(HTMLParser):
    """Collects the elements of a page with their attributes, its text, and tags that are not closed in order."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.disorder: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.disorder.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def attributes(self) -> Attributes:
        return [attribute for _, attributes in self.elements for attribute in attributes.items()]
