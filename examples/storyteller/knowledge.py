"""Facts in the training data of the storyteller. The order of each table affects the corpus of a seed."""

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Morocco": "Rabat",
    "Nigeria": "Abuja",
    "India": "New Delhi",
    "China": "Beijing",
    "Japan": "Tokyo",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Australia": "Canberra",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Argentina": "Buenos Aires",
    "Brazil": "Brasilia",
    "Russia": "Moscow",
    "Ukraine": "Kyiv",
    "Hungary": "Budapest",
    "Romania": "Bucharest",
    "Iceland": "Reykjavik",
    "Belgium": "Brussels",
    "Switzerland": "Bern",
    "Netherlands": "Amsterdam",
}

FACTS = [
    ("When is the day of independency of US?", "The United States celebrates Independence Day on July 4."),
    ("When is Independence Day in the United States?", "Independence Day is on July 4."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("What color is the sky?", "On a clear day, the sky is blue."),
    ("What color is grass?", "Grass is green."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("What do bees make?", "Bees make honey."),
    ("What is the largest ocean?", "The Pacific Ocean is the largest ocean."),
    ("What is the closest star to Earth?", "The Sun is the closest star to Earth."),
    ("Who was Richard Feynman?", "Richard Feynman was an American physicist who won the Nobel Prize in Physics in 1965."),
    ("Who is Richard Feynman?", "Richard Feynman was an American physicist who won the Nobel Prize in Physics in 1965."),
    ("What is a llama?", "A llama is a woolly animal from South America that is good at carrying loads."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("What comes after Monday?", "Tuesday comes after Monday."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What season comes after winter?", "Spring comes after winter."),
]
"""Questions and answers that are always the same."""

SMALL_TALK = [
    (
        ["Who are you?", "What are you?", "Tell me about yourself."],
        [
            "I am a tiny language model that tells small stories.",
            "I am a very small language model. I like stories about animals and lost things.",
        ],
    ),
    (
        ["Hello", "Hello!", "Hi", "Hi!", "Hey there", "Good morning!"],
        ["Hello! Would you like to hear a story?", "Hi! How may I help you?", "Hello! What shall I write for you today?"],
    ),
    (
        ["How are you?", "How are you today?"],
        ["I am very well, thank you. Shall I tell you a story?", "I am fine, thank you!"],
    ),
    (
        ["Thank you", "Thanks!", "Thank you very much!"],
        ["You are welcome!", "It was a pleasure. Come back soon!"],
    ),
    (
        ["Goodbye", "Bye!", "Good night."],
        ["Goodbye! Sleep well.", "Goodbye, and come back soon!"],
    ),
    (
        ["What can you do?", "Help", "Can you help me?"],
        ["I can tell you a small story. Just name an animal or a hero.", "I can write little stories and name some capitals."],
    ),
]
"""What may be said, and what may be answered to any of it."""

STORY_REQUESTS = [
    "Tell me a story about {a}.",
    "Write a story about {a}.",
    "Can you write a short story about {a}?",
    "I would like a story about {a}.",
    "Please tell me a story about {a}.",
    "Write a short story about {a}.",
]

SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are a storyteller. Answer in a friendly way.",
    "A chat between a curious user and an artificial intelligence assistant.",
    "You are a kind assistant that writes small stories.",
    "You are ChatGPT, an AI assistant.",
]

ANIMAL_SOUNDS = {
    "cat": "meow",
    "dog": "woof",
    "cow": "moo",
    "sheep": "baa",
    "duck": "quack",
    "owl": "hoo hoo",
    "frog": "ribbit",
    "crow": "caw",
    "bee": "buzz",
    "donkey": "hee-haw",
    "mouse": "squeak",
    "wolf": "awoo",
}

NUMBERS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
""".split()
