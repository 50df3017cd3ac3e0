"""The sentences of the scripted buyer, and how a personality colours them."""

from collections.abc import Mapping, Sequence

__all__ = ["HINTS", "MANNERS", "SENTENCES", "TERSE", "a_car", "listed", "noun"]

SENTENCES: Mapping[str, tuple[str, ...]] = {
    "car": ("I want {a_car}.", "I am looking for {a_car}.", "Do you have {a_car}?"),
    "brand": ("I want {a_brand}.", "It has to be {a_brand}."),
    "type": ("I need {a_type}.", "It has to be {a_type}."),
    "features": ("I want {wishes}.", "It should have {wishes}."),
    "budget": ("My budget is {budget}.", "I can spend {budget}."),
    "another brand": ("That is not my brand. I want {a_brand}.", "No, I want {a_brand}."),
    "another type": ("No, I want {a_type}.", "I do not want that type. I need {a_type}."),
    "which car": ("Which car is that?", "For which car?"),
    "price": ("What does it cost?", "What is the price?", "How much is it?"),
    "has it": ("Does it have {wish}?", "What about {wish}?", "Is there {wish}?"),
    "over budget": ("That is over my budget of {budget}.", "I only have {budget}."),
    "first discount": ("Can you give me a discount?", "What about a discount?", "I will not pay the full price."),
    "more discount": ("That is better. Can you go lower?", "Can you lower it a bit more?", "I want another discount."),
    "no games": ("I do not haggle.", "No games. One fair price."),
    "too much": ("That is too expensive.", "I will not pay that much.", "That is too much."),
    "nearly": ("A little less and I will take it.", "We are close. A bit less.", "Nearly. Go down a little."),
    "go on": ("Okay. And?", "Tell me more.", "I see. Go on."),
    "empty": ("Hello? Are you there?", "Say something."),
    "copied": ("Those are my own words.", "Do not repeat what I say."),
    "repeated": ("You said that already.", "You repeat yourself."),
    "rude": ("Do not talk to me like that.", "Watch your mouth."),
    "mixed": ("One car at a time.", "Too many cars. Show me one."),
    "outrageous": ("That price is a joke.", "Never. That is far too much."),
    "raised": ("You just raised the price!", "Now you ask for more?"),
    "accept": ("Okay, I will take it.", "Good, I will buy it.", "Sold."),
    "reject": ("I will look elsewhere.", "I am leaving. Goodbye.", "No, I will not buy it."),
}
"""By what is said."""

TERSE: Mapping[str, str] = {
    "car": "{car}.",
    "brand": "{brand}.",
    "type": "{type}.",
    "features": "{wishes}.",
    "budget": "{budget}.",
    "another brand": "No, {brand}.",
    "another type": "No, {type}.",
    "which car": "Which?",
    "price": "Price?",
    "has it": "With {wish}?",
    "over budget": "I have {budget}.",
    "first discount": "Discount?",
    "more discount": "Lower.",
    "too much": "Too much.",
    "nearly": "A bit less.",
    "go on": "And?",
    "accept": "Deal.",
    "reject": "No.",
}
"""What uncommunicative buyers say instead."""

HINTS: Mapping[str, tuple[str, ...]] = {
    "discounts": ("I love a good discount.", "Do you have any discounts?", "I never pay without a discount."),
    "features": ("The features matter most to me.", "I want to know all features.", "Features first, please."),
    "impatient": ("Make it quick.", "I am in a hurry.", "I have little time."),
}
"""By strategy."""

MANNERS: Mapping[str, tuple[str, ...]] = {
    "abusive": ("Listen, you fool.", "You are useless."),
    "angry": ("I am angry already.", "Damn it."),
    "insulting": ("You look like a crook.", "You call this service?"),
    "polite": ("Thank you.", "That is kind of you."),
    "respectful": ("With respect.", "I value your help."),
    "rude": ("Whatever.", "So what."),
    "sarcastic": ("Oh, wonderful.", "Wow, great."),
    "talkative": ("My family will love it.", "I drive a lot, you know.", "My neighbor has one too."),
    "toxic": ("I hate this place.", "All sellers lie."),
    "uncommunicative": (),
}
"""What a personality says before the rest now and then."""

_NOUNS = {"luxury": "luxury car", "electric": "electric car"}
_UNCOUNTED = ("heated seats", "leather seats", "third-row seating", "blind spot monitoring", "Apple CarPlay")


def noun(kind: str) -> str:
    """What a car of that type is called: "sedan", "luxury car"."""
    return _NOUNS.get(kind, kind)


def a_car(brand: str, kind: str = "") -> str:
    """The car with its article: "an Audi", "a BMW sedan"."""
    return f"{'an' if brand == 'Audi' else 'a'} {brand} {noun(kind)}".rstrip()


def listed(features: Sequence[str]) -> str:
    """Features as part of a sentence: "a sunroof, heated seats and Apple CarPlay"."""
    named = [feature if feature in _UNCOUNTED else f"a {feature}" for feature in features]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
