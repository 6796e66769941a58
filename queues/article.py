"""The article of a noun that is only known when the message is written."""


def with_article(noun: str) -> str:
    """Return the noun with ``a`` or ``an``.

    >>> with_article("long"), with_article("int"), with_article("array<int>")
    ('a long', 'an int', 'an array<int>')
    """
    return f"an {noun}" if noun[:1].lower() in tuple("aeio") else f"a {noun}"
