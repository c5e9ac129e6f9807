"""The four plots, sentence by sentence: each beat has several wordings."""

from __future__ import annotations


class Beat:
    """One step of a plot: its wordings, and the probability that a story has it."""

    def __init__(self, *wordings: str, chance: float | None = None) -> None:
        self.wordings = wordings
        self.chance = chance
        """In [0, 1]; None means always, and draws no random number."""


OPENINGS = [
    "Once upon a time, there was {a_hero} named {name}.",
    "Once upon a time, in {place}, there lived {a_hero} named {name}.",
    "Once upon a time, {a_hero} named {name} lived in {place}.",
    "Long ago, in {place}, there lived {a_hero} called {name}.",
    "There was once {a_hero} named {name} who lived in {place}.",
    "In {place} lived {a_hero} whose name was {name}.",
    "One bright morning, {a_hero} named {name} woke up early.",
    "Once there was {a_hero} and {pos} name was {name}.",
    "Far away, in {place}, {a_hero} named {name} was looking out of the window.",
]

QUEST = [
    Beat(*OPENINGS),
    Beat(
        "{weather}",
        chance=0.4,
    ),
    Beat(
        "One day, {lost} was gone.",
        "One night, someone stole {lost}.",
        "But in the middle of winter, {lost} disappeared.",
        "Then came the day when {lost} could not be found.",
    ),
    Beat(
        "Everyone in the village was sad.",
        "Nobody knew where to look.",
        '"Who will bring it back?" the people asked.',
        "The old people shook their heads.",
    ),
    Beat(
        '"I will go," said {name}.',
        "{name} put on {pos} boots and set out.",
        "So {name} packed {a_thing} and walked toward {wild}.",
        '"I am not afraid," said {name}, but {pos} knees were shaking.',
    ),
    Beat(
        "At {wild}, {sub} heard {sound}.",
        "When {sub} came to {wild}, {sub} {afraid}.",
        "The path led through {wild}, where no birds sang.",
        "{Sub} walked all day until {sub} reached {wild}.",
        chance=0.7,
    ),
    Beat(
        "There {sub} met {a_friend} named {friend_name}.",
        "Behind a stone sat {a_friend} called {friend_name}.",
        'Just then {a_friend} stepped out of the shadows. "My name is {friend_name}," it said.',
    ),
    Beat(
        '"Please share your supper with me," said the {friend}, and {name} gave it half.',
        '"I am stuck," said the {friend}. {name} pulled and pulled until it was free.',
        '"I have lost my way," said the {friend}. {name} showed it the road.',
        '"I am cold," said the {friend}, so {name} wrapped it in {pos} scarf.',
    ),
    Beat(
        '"You are kind," said {friend_name}. "Take this {gift}. You will need it."',
        "In return, {friend_name} gave {obj} {a_gift}.",
        '"Then I will help you," said {friend_name}, and it gave {obj} {a_gift}.',
    ),
    Beat(
        "Together they crossed {wild2}.",
        "Together they climbed up to {wild2}.",
        "They went on to {wild2} side by side.",
        "The two friends walked until they saw {wild2}.",
    ),
    Beat(
        "There, under a heap of leaves, lay {lost}.",
        "A great giant slept there, and beside him was {lost}.",
        "At the very top, shining in the dark, was {lost}.",
        "And there, in a box without a lock, they found {lost}.",
    ),
    Beat(
        "{name} used the {gift}, and the door swung open.",
        "The giant woke up, but {name} gave him the {gift}, and he smiled for the first time in years.",
        "With the {gift} in {pos} hand, {name} was not afraid any more.",
        "The {gift} began to glow, and it showed them the way home.",
    ),
    Beat(
        "When they came home, everyone cheered.",
        "The whole village came out to meet them.",
        "That evening there was music in every street.",
        "{name} {glad}, and so did {friend_name}.",
    ),
    Beat(
        "{moral}.",
        "And from that day on, {name} and {friend_name} were the best of friends.",
        "They lived happily ever after.",
        "And if you listen at night, you can still hear them laughing.",
        chance=0.8,
    ),
]
"""Something precious is lost; the hero is kind to a stranger on the way and brings it home."""

WISH = [
    Beat(*OPENINGS),
    Beat(
        "{name} wanted nothing more than {a_thing}.",
        "More than anything, {name} wished for {a_thing}.",
        "Every night {sub} dreamed of {a_thing}.",
    ),
    Beat(
        "But {sub} had no money at all.",
        '"You are too small," the others said.',
        "{Sub} asked {pos} mother, but she only smiled.",
        "The shop in town was always closed.",
        chance=0.5,
    ),
    Beat(
        "So {sub} worked every day, carrying water and sweeping floors.",
        "One day {sub} decided to make one out of old wood and string.",
        "So {sub} went to {wild} to look for one.",
        "So {sub} asked every neighbor for help, one by one.",
    ),
    Beat(
        "It took a whole year.",
        "It was hard work, but {name} did not give up.",
        "Seven times {sub} failed, and seven times {sub} tried again.",
        "{weather}",
    ),
    Beat(
        "At last the {thing} was {own}.",
        "At last {sub} held the {thing} in {pos} hands.",
        "Then one morning the {thing} was ready.",
    ),
    Beat(
        "On the way home {sub} met {a_friend} who was crying.",
        "But next door lived {a_friend} named {friend_name} who had nothing.",
        "Just then {a_friend} came by, cold and tired.",
    ),
    Beat(
        "{name} looked at the {thing} for a long time.",
        "{name} thought about it all night.",
        "For a moment {name} said nothing.",
    ),
    Beat(
        "Then {sub} gave it away.",
        '"Here," {sub} said, "you need it more than I do."',
        '"We can share it," said {name}.',
        'Then {sub} broke into a smile and said, "It is yours."',
    ),
    Beat(
        "The {friend} {glad}.",
        "The {friend} could not believe it.",
        "Tears of joy ran down the {friend}'s cheeks.",
    ),
    Beat(
        "And that was the day {name} learned that giving is better than having.",
        "From then on, {name} never felt lonely again.",
        "{moral}.",
        "The next morning {name} found {a_gift} on {pos} doorstep, and nobody ever knew who had left it there.",
    ),
]
"""The hero earns what they longed for, and gives it away."""

CONTEST = [
    Beat(*OPENINGS),
    Beat(
        "Every summer there was a great race to {wild}.",
        "Once a year the animals held a contest to see who was the best singer.",
        "The king promised {a_gift} to whoever could make him laugh.",
        "One day a notice was nailed to the gate: the fastest would win {a_gift}.",
    ),
    Beat(
        '"I will surely win," said {friend_name} the {friend}, who was very proud.',
        "{friend_name} the {friend} boasted that nobody could beat it.",
        'All the others laughed at {name}. "You?" said {friend_name} the {friend}.',
    ),
    Beat(
        "{name} only smiled and tied {pos} shoes.",
        "{name} {sad}, but {sub} came anyway.",
        '"We shall see," said {name}.',
        "{name} practiced every day before breakfast.",
    ),
    Beat(
        "{weather}",
        "The drums began to beat.",
        "A crowd had gathered on the hill.",
        chance=0.5,
    ),
    Beat(
        "At first {friend_name} was far ahead.",
        "At first everything went wrong.",
        "When {name}'s turn came, {sub} {afraid}.",
        "The {friend} ran so fast that it did not look where it was going.",
    ),
    Beat(
        "But then {friend_name} fell into a ditch near {wild2}.",
        "But then the {friend} stopped to look at itself in the water.",
        "But then a storm blew over {wild2}.",
        "But halfway there, {friend_name} lost its way.",
    ),
    Beat(
        "{name} could have gone on alone, but {sub} stopped and held out {pos} hand.",
        "{name} turned back to help.",
        '"Hold on!" cried {name}, and {sub} pulled the {friend} out.',
        "{name} kept going, one step at a time.",
    ),
    Beat(
        "They crossed the line together.",
        "So they both came in last, and nobody minded.",
        "And when {name} came over the hill, everybody cheered.",
        "The king saw it all and stood up.",
    ),
    Beat(
        '"{moral}," said the king.',
        '"I was wrong about you," said {friend_name}.',
        "The king gave the {gift} to {name}, and {name} shared it.",
        "After that, {friend_name} never boasted again.",
    ),
]
"""A boaster is beaten by patience or by kindness."""

MYSTERY = [
    Beat(*OPENINGS),
    Beat(
        "Every night, at midnight, {sub} heard {sound}.",
        "Each morning, {sub} found {a_thing} at the door.",
        "Something strange was happening near {wild}.",
        "One evening {sub} saw a light moving over {wild}.",
    ),
    Beat(
        '"It is only the wind," said {pos} grandmother.',
        '"It is a ghost," whispered the neighbors.',
        "Nobody else seemed to notice.",
        '"Do not go near it," said the miller.',
    ),
    Beat(
        "But {name} was curious.",
        "But {name} could not sleep.",
        "So {name} took a lantern and went to see.",
        "{name} made a plan.",
    ),
    Beat(
        "{Sub} hid behind a barrel and waited.",
        "{Sub} followed the footprints all the way to {wild}.",
        "{Sub} left a trail of crumbs and walked into the dark.",
        "{Sub} tied a thread to the {thing} and followed it.",
    ),
    Beat(
        "At first there was nothing at all.",
        "{weather}",
        "An hour passed, and then another.",
        "Then the bushes moved, and {name} {afraid}.",
    ),
    Beat(
        "And who was it? It was {a_friend} named {friend_name}!",
        "Out came {a_friend}, no bigger than a shoe.",
        "It was no ghost. It was {a_friend} with a candle on its head.",
    ),
    Beat(
        '"Please do not be angry," said the {friend}. "I only wanted a friend."',
        '"I was looking for {lost}," said the {friend}.',
        '"I come here to sing," said the {friend}, "because nobody can hear me."',
        '"I bring you presents," said the {friend}, "because you once helped my mother."',
    ),
    Beat(
        "{name} {glad}.",
        "{name} was not afraid any more.",
        '"Then come in," said {name}, "and have some tea."',
        '"Why did you not knock?" asked {name}.',
    ),
    Beat(
        "From that night on, there were two cups on the table.",
        "And so the mystery was solved.",
        "They told stories until the sun came up.",
        "{moral}.",
        "And {name} never told anyone else.",
    ),
]
"""What goes bump in the night turns out to be a friend."""

PLOTS = [QUEST, WISH, CONTEST, MYSTERY]
