"""Words of the stories and chats. The order of each list affects the corpus of a seed."""

NAMES = """
    Mara Tobin Elsie Hugo Wren Otto Nell Jasper Ivy Felix Luna Oscar Hazel Milo Rosa Finn Clara Arlo Daisy Theo Juno
    Simon Pearl Leo Greta Amos Willa Ezra Nora Silas Maya Jonah Tess Rufus Lena Abel Cora Dario Edith Gus Hana Ines Kai
    Lotte Mina Noor Piet Quinn Rafi Sana Tariq Uma Vera Yusuf Zora
""".split()

GIRLS = set(
    """
    Mara Elsie Wren Nell Ivy Luna Hazel Rosa Clara Daisy Juno Pearl Greta Willa Nora Maya Tess Lena Cora Edith Hana
    Ines Lotte Mina Noor Sana Uma Vera Zora
""".split()
)
"""Those of the names that take "she"; the others take "he"."""

ANIMALS = """
    fox llama owl rabbit bear mouse hedgehog goat otter badger crow turtle cat dog donkey squirrel heron frog swan wolf
    mole sparrow pony bee snail
""".split()

PEOPLE = [
    "girl",
    "boy",
    "baker",
    "weaver",
    "shepherd",
    "fisherman",
    "clockmaker",
    "gardener",
    "miller",
    "sailor",
    "painter",
    "tailor",
    "carpenter",
    "mapmaker",
    "beekeeper",
    "lighthouse keeper",
    "young princess",
    "young prince",
    "old wizard",
    "little robot",
    "giant",
    "dragon",
]

TRAITS = """
    small young kind brave quiet curious clever gentle lonely cheerful shy stubborn hungry sleepy patient honest merry
    proud clumsy thoughtful
""".split()

HOMES = [
    "a small village by the sea",
    "a quiet valley between two mountains",
    "a deep green forest",
    "a stone cottage at the edge of the woods",
    "a busy town with a tall clock tower",
    "an old mill beside a river",
    "a house on a windy hill",
    "a little house under an oak tree",
    "a snowy land far to the north",
    "a sunny meadow full of clover",
    "a castle with a hundred windows",
    "the middle of an island shaped like a spoon",
    "a narrow street of crooked houses",
    "a valley where the wheat grew high",
    "a cave behind a waterfall",
    "a lighthouse at the end of the world",
]
"""Where a story begins; each fits after "in"."""

WILDS = [
    "the dark forest",
    "the tall mountain",
    "the frozen lake",
    "the old stone bridge",
    "the misty swamp",
    "the sandy shore",
    "the deep cave",
    "the silver river",
    "the hill of thorns",
    "the empty castle",
    "the whispering valley",
    "the northern sea",
    "the moonlit meadow",
    "the crooked tower",
]
"""Where a story leads to."""

THINGS = [
    "golden key",
    "silver bell",
    "blue lantern",
    "wooden flute",
    "red kite",
    "tiny map",
    "glass marble",
    "warm coat",
    "loaf of bread",
    "pocket watch",
    "magic seed",
    "feather",
    "brass compass",
    "shiny shell",
    "ball of yarn",
    "honey cake",
    "green ribbon",
    "paper boat",
    "music box",
    "round stone",
    "copper coin",
    "storybook",
]

LOST = [
    "the village bell",
    "the queen's crown",
    "the last candle",
    "the baby's song",
    "the spring rain",
    "the morning star",
    "the old king's laugh",
    "the harvest moon",
    "the color blue",
    "the river's voice",
]
"""What can be lost, and found again."""

WEATHER = [
    "The sun was warm and the sky was clear.",
    "Rain tapped softly on the roof.",
    "Snow lay deep on the ground.",
    "The wind smelled of salt and pine.",
    "A thin mist hung over the fields.",
    "Stars were already shining.",
    "The leaves were red and gold.",
    "Everything was very still.",
]

FEELINGS = {
    "sad": ["sat down and cried", "felt very small", "hung {pos} head", "sighed a long sigh"],
    "glad": ["laughed out loud", "danced in a circle", "smiled from ear to ear", "clapped with joy"],
    "afraid": ["trembled like a leaf", "wanted to run home", "held {pos} breath", "hid behind a rock"],
}
"""How each mood shows; `{pos}` is the hero's possessive pronoun."""

SOUNDS = [
    "a strange humming",
    "a soft tapping",
    "someone singing",
    "a loud crash",
    "a tiny voice",
    "the beating of wings",
    "a far-off drum",
    "a low growl",
]
"""What is heard in the dark."""

MORALS = [
    "Kindness always finds its way home",
    "Even the smallest friend can do a great thing",
    "A shared loaf tastes the sweetest",
    "It is brave to ask for help",
    "A promise is a kind of treasure",
    "Slow and steady steps cross every mountain",
    "The truth is lighter to carry than a lie",
    "What we give away comes back to us",
    "No one is lost who has a friend",
    "Patience opens every door",
]
