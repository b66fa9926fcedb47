"""Where values come from: phrase grammar, word lists, and what is held back from training.

A template that begins with `~` is never used in training, nor is a tenth of each list of names and places: they are for the evaluation."""
import json, re, zlib

CHOICE = re.compile(r"\[([^\[\]]*)\]")


def expand(text, r, /, **slots):
    """Expands [a|b|c] to one of them, then $slots."""
    while found := CHOICE.search(text):
        text = text[:found.start()] + r.choice(found.group(1).split("|")) + text[found.end():]
    for key in sorted(slots, key=len, reverse=True):
        text = text.replace("$" + key, str(slots[key]))
    return text


def cap(text): return text[:1].upper() + text[1:]
def to_json(value): return json.dumps(value, ensure_ascii=False)
def a_or_an(word): return "an" if word[:1].lower() in "aeiou" else "a"


FIRST = """Ada Alan Alice Amara Amir Ana Andre Anika Anna Arjun Aisha Ben Bianca Boris Bruno Carla Carlos Chen Chloe Clara Daniel Daria David Diego Elena Elias Emil Emma Erik Eva Fatima Felix Fiona Freya George Grace Greta Hana Hannah Hassan Hugo Ida Igor Ines Ingrid Isaac Ivan Jack Jana Jin Joao Johan Jonas Julia Kai Karim Kate Kenji Kim Klara Lars Laura Lea Leo Li Lin Lucas Lucia Luis Maja Marco Maria Mark Marta Mateo Max Maya Mei Mia Mila Milan Mina Mira Mohamed Nadia Nina Noah Nora Olga Oliver Omar Oscar Paul Pedro Peter Petra Priya Quinn Rafael Raj Rita Robert Rosa Ruth Sam Samir Sara Sofia Stefan Sven Tara Tom Uma Vera Victor Wei Yara Yuki Zara Zoe""".split()
LAST = """Abe Adams Ahmed Ali Alvarez Andersen Baker Bauer Becker Bell Bianchi Brown Carter Castro Chan Clark Costa Cruz Diaz Dubois Evans Fischer Flores Fox Garcia Gomez Gray Green Gupta Haas Hall Hansen Hill Ito Ivanov Jensen Jones Kaya Keller Khan King Klein Kowalski Kumar Lang Larsen Lee Lewis Lopez Martin Mendes Meyer Miller Moreau Mori Nakamura Nguyen Novak Olsen Ortiz Park Patel Perez Petrov Reed Reyes Ricci Rossi Ruiz Sato Schmidt Scott Silva Singh Smith Sousa Stone Suzuki Tanaka Taylor Torres Vargas Vogel Wagner Walker Weber White Wilson Wong Wood Young Zhang""".split()
CITY = """Accra Algiers Amman Amsterdam Ankara Athens Atlanta Auckland Austin Baku Bangkok Barcelona Basel Beijing Beirut Belgrade Bergen Berlin Bern Bogota Boston Brisbane Brussels Bucharest Budapest Cairo Calgary Cardiff Caracas Chennai Chicago Cologne Copenhagen Cusco Dakar Dallas Delhi Denver Dhaka Doha Dubai Dublin Durban Edinburgh Florence Frankfurt Geneva Genoa Ghent Glasgow Graz Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Kampala Kigali Kingston Krakow Kyoto Lagos Leeds Leipzig Lille Lima Lisbon London Lusaka Lyon Madrid Malaga Manila Marseille Melbourne Memphis Miami Milan Montreal Mumbai Munich Nairobi Nantes Naples Nice Osaka Oslo Ottawa Palermo Paris Perth Porto Prague Quito Reykjavik Riga Rome Rotterdam Salzburg Santiago Seattle Seoul Seville Shanghai Singapore Sofia Stockholm Sydney Taipei Tallinn Tampa Tbilisi Tokyo Toledo Toronto Trieste Tunis Turin Utrecht Valencia Vancouver Venice Verona Vienna Vilnius Warsaw Wellington Yerevan Zagreb Zurich""".split()
CITY2 = ["New York", "San Diego", "Cape Town", "Los Angeles", "Mexico City", "Hong Kong", "Buenos Aires", "San Jose", "Kuala Lumpur", "Santa Fe", "Tel Aviv", "New Delhi", "Las Vegas", "Panama City"]
COUNTRY = "Austria Belgium Brazil Canada Chile China Denmark Egypt Finland France Germany Ghana Greece India Ireland Italy Japan Kenya Mexico Mongolia Morocco Norway Peru Poland Portugal Slovenia Spain Sweden Turkey Vietnam".split()
ANIMAL = "fox owl bear rabbit cat dog mouse turtle frog duck horse otter wolf badger hedgehog sparrow penguin whale crab beetle squirrel goat sheep robot dragon kitten puppy snail bee crow".split()
ITEM = "banana pencil lamp chair table keyboard monitor cable notebook mug bottle bag shirt jacket hat clock phone camera printer desk shelf mirror guitar candle blanket pillow umbrella ticket coffee pizza sandwich cake ring watch tent bike".split()
JOB = "teacher engineer doctor nurse baker pilot writer painter farmer lawyer designer chef driver singer chemist plumber student gardener translator librarian carpenter photographer architect dentist".split()
COLOR = "red blue green black white yellow purple orange silver brown grey pink".split()
WEEK = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTH = "January February March April May June July August September October November December".split()
COMMON = """time year people way day man thing woman life child world school state family student group country problem hand part place case week company system program question work number night point home water room mother area money story fact month lot right study book eye job word business issue side kind head house service friend father power hour game line end member law car city community name president team minute idea body information back parent face level office door health person art war history party result change morning reason research girl guy moment air force education open quick over jump river mountain forest cloud rain snow wind summer winter spring happy quiet bright dark soft hard early late slow fast old new long short warm cold sweet salt bread milk honey apple lemon garden window bridge street light paper stone metal glass wood sand fire earth moon star sun sky ocean wave boat train plane road path field farm bird fish tree leaf flower grass seed root server token model prompt cache batch stream queue layer memory latency request answer client key value price limit network hello the and with from this that one two three four five six seven eight nine ten lazy jumps runs walk sing dance read write speak listen north south east west true false good bad best big small little great plain simple clear empty full first last next sea lake island hill valley king queen castle ship sail map gold iron copper cotton silk wool code data file disk cloudy sunny love peace hope dream music song voice radio letter envelope circle square triangle zero""".split()
WORDS = sorted(set(COMMON + ANIMAL + ITEM + COLOR + JOB))
FIELD = set("token model prompt cache batch stream queue layer memory latency request answer client key value price limit network server data file code seed root system program number state time line end".split())
CODE = "alpha beta gamma delta omega prime nova pixel cobalt amber maple cedar onyx ruby echo lunar solar polar urban rapid".split()
SKY = ["sunny", "cloudy", "light rain", "heavy rain", "snow", "windy", "foggy", "clear", "partly cloudy", "stormy"]
LETTERS = "ABCDEFGHKLMNPRSTXZ"
ONSET, VOWEL, CODA = "b c d f g h k l m n p r s t v z br dr gr kl pl st tr sh".split(), "a e i o u a e i o ai ou".split(), ["", "", "n", "r", "l", "s", "m", "t", "x"]


def held_word(word):
    """A tenth of each list is kept for the evaluation."""
    return zlib.crc32(word.encode()) % 10 == 0


class Values:
    """Draws values; with `held` only such as training never sees, and templates that begin with `~`."""
    def __init__(self, r, held=False): self.r, self.held = r, held

    def ask(self, *templates, **slots):
        fit = [t for t in templates if t.startswith("~") == self.held] or [t for t in templates if not t.startswith("~")]
        return expand(self.r.choice(fit).removeprefix("~"), self.r, **slots)

    def say(self, *templates, **slots): return expand(self.r.choice(templates), self.r, **slots)

    def of(self, words):
        while True:
            word = self.r.choice(words)
            if held_word(word) == self.held: return word

    def invented(self, syllables=None):
        r = self.r
        return cap("".join(r.choice(ONSET) + r.choice(VOWEL) + r.choice(CODA) for _ in range(syllables or r.choice([2, 2, 3]))))

    def spliced(self, names):
        """The beginning of one name and the end of another: its tokens are met in names, their order is not."""
        while True:
            a, b = self.of(names), self.of(names)
            name = a[:self.r.randint(1, len(a) - 1)] + b[self.r.randint(1, len(b) - 1):].lower()
            if not (name in names and held_word(name)):
                return name

    def name(self, names):
        x = self.r.random()
        return self.invented() if x < .35 else self.spliced(names) if x < .55 and not self.held else self.of(names)

    def first(self): return self.name(FIRST)
    def last(self): return self.name(LAST)
    def full(self): return self.first() + " " + self.last()

    def city(self):
        x = self.r.random()
        return self.invented() if x < .25 else self.r.choice(CITY2) if x < .32 and not self.held else self.spliced(CITY) if x < .42 and not self.held else self.of(CITY)

    def word(self): return self.r.choice(WORDS)
    def plain_word(self):
        """A word that is none of the field's."""
        while (word := self.word()) in FIELD: pass
        return word

    def item(self): return self.r.choice(ITEM)

    def odd(self):
        """A word that the lists do not have, in small letters: invented, made of two, with an ending, or a name."""
        r, k = self.r, self.r.randrange(5)
        if k <= 1: return self.invented(2).lower()
        if k == 2: return self.word() + self.word()
        if k == 3: return self.word() + r.choice(["s", "ed", "ing", "er", "ly", "ness", "less"])
        return self.of(r.choice([FIRST, LAST, CITY])).lower()

    def words(self, count, known=.93):
        found = []
        while len(found) < count:
            word = self.word() if self.r.random() < known else self.invented(2).lower() if self.held else self.odd()
            if word not in found: found.append(word)
        return found

    def ident(self):
        r, k = self.r, self.r.randrange(4)
        if k == 0: return r.choice(LETTERS) + str(r.randint(100, 99999))
        if k == 1: return str(r.randint(1000, 999999))
        if k == 2: return r.choice(LETTERS) + r.choice(LETTERS) + "-" + str(r.randint(10, 9999))
        return r.choice(CODE) + "-" + str(r.randint(1, 999))

    def email(self): return (self.first() + "." + self.last()).lower() + "@" + self.invented(2).lower() + self.r.choice([".com", ".org", ".net", ".io"])
    def clock(self): return f"{self.r.randint(0, 23):02d}:{self.r.choice(['00', '05', '15', '20', '30', '40', '45'])}"

    def topic(self):
        return expand(self.r.choice(TOPICS), self.r, c=self.city(), d=self.city(), w=self.word(), k=self.r.choice(WEEK), j=self.r.choice(JOB), f=self.first(), l=self.last())


TOPICS = "the history of tea,how bees make honey,cheap flights to $c,the best museums in $c,hotels in $c,how to bake bread,electric bikes,open source language models,the rules of chess,the population of $c,used books about $w,train tickets from $c to $d,news about $w,a recipe with $w,good restaurants in $c,vegetarian food in $c,concerts in $c this $k,a $w repair guide,jobs for a $j in $c,the price of $w in $c,walking shoes,gifts for a $j,$f $l,the life of $f $l,books by $f $l".split(",")
