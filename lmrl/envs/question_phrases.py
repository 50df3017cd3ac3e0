"""Groups of words in questions, put in a plainer way."""

import re

__all__ = ["plainly"]

_PHRASES = tuple(
    (re.compile(rf"\b(?:{old})\b"), new)
    for old, new in (
        (r"isnt|isn t|aint", "is not"),
        (r"(do|does|did|would|could|was|were|are|has|have|should)n t", r"\1 not"),
        (r"can t|cant|cannot|unable to", "can not"),
        (r"dont|doesnt", "does not"),
        (r"inedible|uneatable", "not edible"),
        (r"inanimate|lifeless|nonliving|dead", "not alive"),
        (r"unnatural", "not natural"),
        (r"silent|quiet", "not noisy"),
        (r"non", "not"),
        (r"(?:other|different|else) than|anything but", "not"),
        (r"on the (?:outside|inside)|a lot of|lots of|plenty of|a bit of", ""),
        (r"(?:for it )?to (?:work|run|function|operate)$", ""),
        (r"body parts?|parts? of (?:the|a|your) body", "bodypart"),
        (r"lacks?", "not have"),
        (r"without|lacking|free of", "and not have"),
        (r"but not|(?:that|which) (?:is|are|does|do|can|has|have|will) not", "and not"),
        (r"but", "and"),
        (r"(?<!is )(?:that|which) (?=is|has|can|live|you|people|flies|eat|use|make|grow|come|run|need)", "and it "),
        (r"like (?:a |an )?(?:person|human|human being|man|woman)|human ?like|look human|humanoid", "likeperson"),
        (r"(?:a |any |some |what |the )?types? of|(?:same )?type(?= as)", "a"),
        (r"(?:man|human|person|people) made|made by (?:man|people|humans|a person|human hands)", "manmade"),
        (r"made (?:out of|of|from|with|up of)", "madeof"),
        (r"(?:composed|constructed|consists?|comprised|built|formed) (?:out )?of", "madeof"),
        (r"(?:get|go|travel|move) around(?= |$)|from (?:one )?place to (?:another )?place", "transport"),
        (r"black and white", "blackandwhite"),
        (r"living rooms?", "livingroom"),
        (r"warm blooded", "warmblooded"),
        (r"best friend", "bestfriend"),
        (r"french fries", "frenchfries"),
        (r"big cats?", "bigcat"),
        (r"cat family|family of (?:the )?cats?|cats? family", "feline"),
        (r"bread ?box", "breadbox"),
        (r"shoe ?box", "shoebox"),
        (r"tool (?:box|kit|chest)", "toolbox"),
        (r"salt ?water", "saltwater"),
        (r"fresh ?water", "freshwater"),
        (r"outer ?space", "outerspace"),
        (r"video ?games?", "videogame"),
        (r"washing machine", "laundry"),
    )
)


def plainly(text: str) -> str:
    """The same words, small letters and single spaces, with negations, links and fixed phrases in one form.

    >>> plainly("isn t it a piece of furniture that is made out of wood")
    'is not it a piece of furniture and it is madeof wood'
    """
    for old, new in _PHRASES:
        text = old.sub(new, text)
    return text
