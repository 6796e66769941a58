"""Articles and plurals for nouns in messages to people."""


def with_article(noun: str) -> str:
    """Return the noun with ``a`` or ``an``.

    >>> with_article("long"), with_article("int"), with_article("array<int>")
    ('a long', 'an int', 'an array<int>')
    """
    return f"an {noun}" if noun[:1].lower() in tuple("aeio") else f"a {noun}"


def counted(number: int, noun: str) -> str:
    """Return a number with a noun whose plural ends with ``s``.

    >>> counted(1, "message"), counted(0, "message"), counted(26151, "message")
    ('1 message', '0 messages', '26,151 messages')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
