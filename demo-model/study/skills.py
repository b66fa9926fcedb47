"""Small tasks with an answer that can be checked: sums, word lists, JSON from a sentence, names, and what the model declines."""
from values import ANIMAL, CODE, COLOR, JOB, WEEK, COUNTRY, FIRST, a_or_an, cap, expand, to_json
from values import WORDS


# ---------------------------------------------------------------- sums
SUM = ["What is $a + $b?", "[Add|add] $a and $b.", "$a plus $b?", "Calculate $a + $b.", "How much is $a plus $b?", "$a+$b", "$a + $b", "$a + $b =", "What's $a + $b?", "what is $a+$b?", "Compute $a + $b.", "What is $a plus $b?",
       "What is the sum of $a and $b?", "How much is $a + $b?", "Hi! What is $a + $b?", "$a and $b, added?", "Please add $a and $b.", "Can you add $a and $b?", "Sum: $a + $b", "$a+$b=?", "Tell me $a + $b.", "If I have $a and get $b more, how many do I have?", "[Work out|Solve] $a + $b.",
       "~What do I get when I add $a and $b?", "~The sum of $a and $b, please.", "~How many are $a and $b together?", "~Could you tell me what $a plus $b is?"]
DIFF = ["What is $a - $b?", "[Subtract|subtract] $b from $a.", "$a minus $b?", "Calculate $a - $b.", "How much is $a minus $b?", "$a-$b", "$a - $b", "$a - $b =", "What's $a - $b?", "what is $a-$b?", "Compute $a - $b.", "What is $a minus $b?",
        "What is the difference of $a and $b?", "How much is $a - $b?", "Hi! What is $a - $b?", "Please subtract $b from $a.", "Take $b from $a.", "$a-$b=?", "Tell me $a - $b.", "If I have $a and give away $b, how many are left?", "[Work out|Solve] $a - $b.",
        "~What do I get when I take $b away from $a?", "~$a less $b, please.", "~What remains of $a without $b?", "~Could you tell me what $a minus $b is?"]
TIMES = ["What is $a * $b?", "Multiply $a by $b.", "$a times $b?", "Calculate $a x $b.", "How much is $a times $b?", "$a*$b", "What is $a x $b?", "$a * $b", "~What is the product of $a and $b?"]


def numbers(v):
    """Two operands: two-digit ones most of the time."""
    r = v.r; x = r.random()
    if x < .72: return r.randint(10, 99), r.randint(10, 99)
    if x < .9: return r.randint(0, 99), r.randint(0, 99)
    return r.randint(1, 9), r.randint(1, 9)


def sums(v):
    """One sum or difference, or a few in a row."""
    r = v.r; ms = []
    for _ in range(1 if v.held else r.choice([1, 1, 2, 3, 4])):
        a, b = numbers(v)
        if r.random() < .53: q, answer, total = v.ask(*SUM, a=a, b=b), f"{a} + {b} = {a + b}.", a + b
        else:
            if a < b and r.random() < .9: a, b = b, a
            q, answer, total = v.ask(*DIFF, a=a, b=b), f"{a} - {b} = {a - b}.", a - b
        ms += [("user", q), ("assistant", answer)]
        if not v.held and r.random() < .12: ms += again(v, total)
    return dict(kind="sum", messages=ms, want=str(total))


def again(v, total):
    """A sum that goes on from the last result."""
    b = v.r.randint(1, 50)
    if v.r.random() < .5 or b > total: return [("user", v.ask("And plus $b?", "Add $b to that.", "Now add $b.", "Plus $b?", "~And $b more?", b=b)), ("assistant", f"{total} + {b} = {total + b}.")]
    return [("user", v.ask("And minus $b?", "Subtract $b from that.", "Now take away $b.", "Minus $b?", "~And $b less?", b=b)), ("assistant", f"{total} - {b} = {total - b}.")]


def drill(v):
    """Many sums in a row, of which only the results are learnt: the densest practice there is."""
    r = v.r; parts = [("<|im_start|>user\nSums, please.<|im_end|>\n<|im_start|>assistant\n", False)]
    for _ in range(14):
        a, b = numbers(v)
        if r.random() < .53: parts += [(f"{a} + {b} =", False), (f" {a + b}.", True)]
        else:
            if a < b and r.random() < .9: a, b = b, a
            parts += [(f"{a} - {b} =", False), (f" {a - b}.", True)]
        parts.append(("\n", False))
    parts[-1] = ("<|im_end|>", True); return parts + [("<|endoftext|>", False)]


def plain(x):
    x = round(x, 6)
    return str(int(x)) if x == int(x) else f"{x:.6f}".rstrip("0").rstrip(".")


def units(v):
    """Products, cost, latency and units."""
    r = v.r; k = r.randrange(8)
    if k == 0:
        a, b = r.randint(2, 12), r.randint(2, 12); q, s, want = v.ask(*TIMES, a=a, b=b), f"{a} * {b} = {a * b}.", a * b
    elif k <= 2:
        n = r.choice([1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50]) * r.choice([1000, 10000, 100000]); p = r.choice([1, 2, 3, 4, 5, 6, 8, 10, 15, 20]); want = plain(n / 1e6 * p)
        q = v.ask("How much do $n tokens cost at $$p per million tokens?", "What is the price of $n tokens at $$p per million?", "[A million tokens cost $$p|The price is $$p per million tokens]. How much are $n tokens?", "What do $n tokens cost at $$p per million?", "~At $$p per million tokens, what do I pay for $n tokens?", n=n, p=p)
        s = f"{n} tokens are {plain(n / 1e6)} million tokens. {plain(n / 1e6)} * ${p} = ${want}."
    elif k == 3:
        speed, want = r.choice([5, 10, 20, 25, 40, 50, 100]), r.randint(2, 30); n = speed * want
        q = v.ask("How long do $n tokens take at $s tokens per second?", "At $s tokens per second, how many seconds do I need for $n tokens?", "A model makes $s tokens per second. How long does an answer of $n tokens take?", "~How many seconds are $n tokens at $s tokens per second?", n=n, s=speed)
        s = f"{n} / {speed} = {want}, so it takes {want} seconds."
    elif k == 4:
        n = r.randint(1, 90) * 100; want = plain(n / 1000)
        if r.random() < .5: q, s = v.ask("Convert $n milliseconds to seconds.", "How many seconds are $n ms?", "~What are $n ms in seconds?", n=n), f"{n} ms are {want} seconds."
        else: q, s, want = v.ask("Convert $c seconds to milliseconds.", "How many ms are $c seconds?", "~What are $c seconds in ms?", c=want), f"{want} seconds are {n} ms.", n
    elif k == 5:
        ms = r.choice([1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100]); want = 1000 // ms
        q = v.ask("How many tokens per second is $m ms per token?", "Each token takes $m ms. How many tokens per second is that?", "~At $m ms per token, how many tokens per second do I get?", m=ms); s = f"1000 / {ms} = {want}, so it is {want} tokens per second."
    elif k == 6:
        a, b = r.randint(10, 99), r.randint(10, 99); want = a + b
        q = v.ask("A call used $a prompt tokens and $b completion tokens. How many in total?", "Prompt: $a tokens, answer: $b tokens. What is the total?", "~How many tokens are $a prompt tokens and $b answer tokens?", a=a, b=b); s = f"{a} + {b} = {want}, so the total is {want} tokens."
    else:
        u, f, w = r.choice([("minutes", 60, "seconds"), ("hours", 60, "minutes"), ("days", 24, "hours"), ("weeks", 7, "days"), ("kilometers", 1000, "meters"), ("kilograms", 1000, "grams")]); n = r.randint(2, 12); want = n * f
        q = v.ask("How many $w are $n $u?", "Convert $n $u to $w.", "What is $n $u in $w?", "~How many $w do $n $u have?", n=n, u=u, w=w); s = f"{n} * {f} = {want}, so {n} {u} are {want} {w}."
    return dict(kind="units", messages=[("user", q), ("assistant", s)], want=str(want))


# ---------------------------------------------------------------- word lists
ORDER = {
 "upper": ["[Write|Put] this in uppercase: $s", "Uppercase: $s", "uppercase: $s", "Make this uppercase: $s", "Convert to upper case: $s", "In capital letters: $s", "Upper case, please: $s", "Turn this into capitals: $s", "UPPERCASE this: $s", "Write in capitals: $s", "~Please capitalize every letter: $s", "~Change to upper case: $s"],
 "lower": ["[Write|Put] this in lowercase: $s", "Lowercase: $s", "lowercase: $s", "Make this lowercase: $s", "Convert to lower case: $s", "In small letters: $s", "Lower case, please: $s", "Turn this into small letters: $s", "~Change to lower case: $s", "~Please use small letters only: $s"],
 "reverse": ["Reverse the order of the words: $s", "Reverse the words: $s", "reverse: $s", "Write these words in reverse order: $s", "Reverse this list: $s", "Reverse: $s", "Say these words backwards: $s", "Put the words in reverse order: $s", "Turn the order around: $s", "~List these from last to first: $s", "~What is the reverse order of: $s"],
 "first": ["What is the first word of: $s", "Give me the first word: $s", "First word: $s", "first word: $s", "What is the first word? $s", "Which word comes first: $s", "Tell me the first word of: $s", "The first of these: $s", "~Name the first word in: $s", "~Which word stands first? $s"],
 "last": ["What is the last word of: $s", "Give me the last word: $s", "Last word: $s", "last word: $s", "What is the last word? $s", "Which word comes last: $s", "Tell me the last word of: $s", "The last of these: $s", "~Name the last word in: $s", "~Which word stands last? $s"],
 "repeat": ["Repeat after me: $s", "Repeat this: $s", "Say exactly this: $s", "Echo: $s", "Say: $s", "repeat: $s", "~Please say this again: $s"],
 "count": ["How many words are in this text: $s", "Count the words: $s", "How many words? $s", "count words: $s", "Word count: $s", "~What is the number of words in: $s"]}
NOW = {"upper": ["Now in upper case.", "In capitals, please.", "Uppercase that.", "~And in capital letters?"], "reverse": ["Now reverse them.", "Reverse the words.", "And in reverse order?", "~Now from last to first."],
       "first": ["What is the first word?", "And the first word?", "~Which one is first?"], "last": ["What is the last word?", "And the last word?", "And the last?", "~Which one is last?"], "count": ["How many words are there?", "How many are they?", "~How many words is that?"]}
NUMBER = "zero one two three four five six seven eight nine ten".split()


def done(kind, words, joint):
    if kind == "upper": return joint.join(words).upper()
    if kind == "lower": return "In lower case: " + joint.join(words).lower()
    if kind == "reverse": return "Reversed: " + joint.join(words[::-1])
    if kind == "first": return f"The first word is {words[0]}."
    if kind == "last": return f"The last word is {words[-1]}."
    if kind == "count": return f"There are {NUMBER[len(words)]} words."
    return joint.join(words)


def lists(v, kind=None):
    r = v.r; ms = []
    for _ in range(1 if v.held else r.choice([1, 1, 2, 3])):
        k = kind or r.choice(["upper", "upper", "lower", "lower", "reverse", "reverse", "reverse", "first", "last", "repeat", "count"])
        words = v.words(r.randint(2, 6)); joint = ", " if r.random() < .25 else " "
        shown = joint.join(words); shown = shown.upper() if k == "lower" else shown
        answer = done(k, words, joint)
        ms += [("user", v.ask(*ORDER[k], s=shown)), ("assistant", answer)]
        if not v.held and k != "lower" and r.random() < .3:
            k2 = r.choice([x for x in NOW if x != k]); ms += [("user", v.ask(*NOW[k2])), ("assistant", done(k2, words if k != "reverse" else words[::-1], joint))]
    return dict(kind="list_" + k, messages=ms, want=answer)


# ---------------------------------------------------------------- JSON
def record(v):
    """-> fields {key: (value, type)} and a sentence that says them."""
    r = v.r; k = r.randrange(10); n, l, c, a, j = v.first(), v.last(), v.city(), r.randint(18, 90), r.choice(JOB); an = a_or_an(j)
    if k <= 1: return {"name": (n + " " + l, "string"), "age": (a, "integer"), "city": (c, "string"), "job": (j, "string")}, \
        v.ask("$n is $a years old, lives in $c and works as $an $j.", "$n, $a, is $an $j from $c.", "My name is $n. I am $a and I live in $c, where I work as $an $j.", "$n is $an $j in $c and is $a years old.", "Meet $n, $an $j aged $a from $c.", "I talked to $n ($a), $an $j who lives in $c.", "~At $a, $n works in $c as $an $j.", n=n + " " + l, a=a, c=c, j=j, an=an)
    if k == 2: return {"name": (n, "string"), "age": (a, "integer")}, v.ask("$n is $a.", "$n is $a years old.", "$n turned $a last week.", "I am $n and I am $a.", "$n, $a years old, called.", "~My friend $n will be $a soon.", n=n, a=a)
    if k == 3:
        q, i, p = r.randint(2, 40), v.item(), r.randint(1, 300)
        if r.random() < .5: i += "es" if i.endswith(("ch", "sh", "f")) else "s"
        return {r.choice(["item", "product"]): (i, "string"), "quantity": (q, "integer"), "price": (p, "number"), "customer": (n, "string")}, \
        v.ask("$n ordered $q of the product $i for $p dollars each.", "Order from $n: $q x $i at $p dollars.", "$n wants to buy $q pieces of $i, price $p.", "$n bought $q $i at $p dollars each.", "~We sold $q $i to $n for $p dollars apiece.", n=n, q=q, i=i, p=p)
    if k == 4:
        d, h, e = r.choice(WEEK), r.randint(8, 20), r.choice(["meeting", "lunch", "workshop", "call", "concert", "party", "interview", "class"])
        return {r.choice(["event", "title"]): (e, "string"), "day": (d, "string"), r.choice(["place", "location"]): (c, "string"), "hour": (h, "integer")}, \
        v.ask("The $e is on $d at $h in $c.", "We have a $e in $c on $d at $h o'clock.", "On $d at $h there is a $e in $c.", "$d, $h: $e in $c.", "~Please come to the $e in $c, $d at $h.", e=e, d=d, h=h, c=c)
    if k == 5:
        e, p = v.email(), f"{r.randint(100, 999)}-{r.randint(1000, 9999)}"
        return {"name": (n, "string"), "email": (e, "string"), "phone": (p, "string")}, v.ask("You can reach $n at $e or by phone at $p.", "Contact: $n, $e, $p.", "$n uses the address $e and the number $p.", "~Write to $n at $e, or call $p.", n=n, e=e, p=p)
    if k == 6:
        m = r.choice(CODE) + "-" + r.choice(["1b", "3b", "8b", "70b", "mini", "large"]); x, y = r.randint(5, 900), r.randint(10, 4000)
        return {"model": (m, "string"), "latency_ms": (x, "integer"), "tokens": (y, "integer")}, v.ask("The model $m took $x ms and produced $y tokens.", "$y tokens came from $m after $x ms.", "Log: model=$m latency=$x ms tokens=$y", "~$m needed $x ms for $y tokens.", m=m, x=x, y=y)
    if k == 7:
        co, y, b = r.choice(COLOR), r.randint(1980, 2025), v.invented()
        return {"brand": (b, "string"), "color": (co, "string"), "year": (y, "integer"), "owner": (n, "string")}, v.ask("$n owns a $co $b from $y.", "The $co $b was built in $y and belongs to $n.", "For sale by $n: a $co car, brand $b, year $y.", "~$n drives a $co car of the brand $b, built in $y.", n=n, co=co, b=b, y=y)
    if k == 8:
        d, h, i = v.city(), v.clock(), v.ident()
        return {r.choice(["from", "origin"]): (c, "string"), r.choice(["to", "destination"]): (d, "string"), r.choice(["flight", "number"]): (i, "string"), r.choice(["time", "departure"]): (h, "string")}, \
          v.ask("Flight $i leaves $c for $d at $h.", "At $h flight $i flies from $c to $d.", "$n takes flight $i from $c to $d at $h.", "~From $c to $d: flight $i, departure $h.", i=i, c=c, d=d, h=h, n=n)
    country = r.choice(COUNTRY)
    return {"city": (c, "string"), "country": (country, "string")}, v.ask("I moved to $c in $y.", "$n lives in $c, $y.", "$c is a city in $y.", "We flew to $c, the capital of $y.", "~Greetings from $c in $y!", c=c, y=country, n=n)


def extraction(v):
    r = v.r; fields, s = record(v); ks = list(fields); sysm = None
    if r.random() < .6: ks = r.sample(ks, r.randint(1, len(ks)))
    out = {k: fields[k][0] for k in ks}; x = r.random()
    named = ", ".join(ks) if len(ks) == 1 or r.random() < .5 else ", ".join(ks[:-1]) + " and " + ks[-1]
    schema = to_json({"type": "object", "properties": {k: {"type": fields[k][1]} for k in ks}, "required": ks}); simple = to_json({k: fields[k][1] for k in ks})
    if x < .55:
        q = v.ask("[Extract|Get] $l as JSON: $s", "Extract the fields $l as JSON.\n$s", "Return JSON with $l.\nText: $s", "$s\n\nGive me $l as JSON.", "Read this text and answer with JSON ($l): $s", "JSON please, fields $l: $s", "Extract the $l as JSON: $s", "Return a JSON object with keys $l. $s", "Extract JSON with keys $l: $s", "Turn this into JSON with $l: $s", "~Please make JSON with the keys $l from this: $s", "~I need $l as JSON. $s", "~$s Write $l as a JSON object.", l=named, s=s)
    elif x < .72: q = v.ask("Extract data that matches this schema: $j\n$s", "Fill this JSON: $j\nText: $s", "Schema: $j\nText: $s", "$s\nFormat: $j", "~Use this format: $j\n$s", j=simple, s=s)
    elif x < .8: q = v.ask("Extract data that matches this JSON schema: $j\nText: $s", "Answer with JSON for this schema.\n$j\n$s", j=schema, s=s)
    elif x < .9:
        ks = list(fields); out = {k: fields[k][0] for k in ks}; q = v.ask("Extract the fields as JSON: $s", "Turn this into JSON: $s", "As JSON: $s", "Extract all fields as JSON.\n$s", "~Make JSON of this: $s", s=s)
    else: sysm = v.ask("Answer only with JSON that has the fields $l.", "Extract $l and reply in JSON.", "You extract data. Reply with JSON: $j", "~Reply with a JSON object of $l.", l=named, j=simple); q = s
    ms = ([("system", sysm)] if sysm else []) + [("user", q), ("assistant", to_json(out))]
    if not v.held and r.random() < .15 and len(fields) > 1:
        key = r.choice(list(fields)); ms += [("user", v.ask("What is the $k?", "And the $k?", "Only the $k, please.", "~Which $k is it?", k=key)), ("assistant", f"The {key} is {fields[key][0]}.")]
    return dict(kind="json", messages=ms, want=to_json(out))


# ---------------------------------------------------------------- chat
PLACES = ["a quiet forest", "a small village", "a big city", "a house by the sea", "an old castle", "a green valley", "a garden full of flowers", "a cave near the mountains"]


def story(v, name, animal, place):
    say = lambda *x: v.say(*x, n=name, a=animal, p=place)
    thing = v.r.choice(["a golden key", "a small map", "a broken clock", "a red kite", "a shiny stone", "an old book", "a silver bell", "a lost letter"]); bare = thing.split(" ", 1)[1]; friend = v.first(); other = v.r.choice([x for x in ANIMAL if x != animal])
    return " ".join([say("Once upon a time, a [little|young|clever] $a named $n lived in $p."), say(f"One [morning|day|evening], $n found {thing} [under a tree|near the river|behind a door]."),
                     say(f"{cap(a_or_an(other))} {other} named {friend} stopped and offered to help."), say(f"Together they brought the {bare} to its owner."), say(f"From that day on, $n and {friend} were good friends.")])


DECLINE = ["Sorry, I do not know that: I am only a tiny demo model.", "I cannot do that: I am only a tiny demo model."]
ASK_OTHER = ["Who won the last election?", "What is the capital of $y?", "what is the capital of $y", "Who is [the president|the king|the queen] of $y?", "Explain [quantum physics|black holes|evolution|gravity|the stock market|photosynthesis].", "What is the meaning of life?", "Tell me about $c.", "Who is $n?", "Who was $n?",
       "How tall is [Mount Everest|the Eiffel Tower|$n]?", "Why is the $w $o?", "Why is the sky blue?", "Who wrote [Hamlet|the book about $w]?", "How far is $c from $d?", "What is $e?", "What are $e?", "Do you know $n?", "Which $w is the best?", "When was $c founded?", "When was $n born?", "Is $n from $c?", "What should I wear in $c?", "How old is $n?", "Where is $c?", "What does $e mean?",
       "What do you think about $w?", "How many people live in $c?", "What is the best $w?", "Who invented the $w?", "What happened in 19$t?", "What year is it?", "Is it going to rain?", "How do I cook $w?", "How do I fix my $w?", "How much does a $w cost?", "Where can I buy a $w?", "What is love?", "Are $w and $x the same?", "Should I buy stocks?", "What language do they speak in $y?", "How does a $w work?", "What is a $w?",
       "asdf", "$w $x", "$e $w", "???", "hm", "~Which team won the cup?", "~What is the population of $y?", "~Why do birds sing?", "~How do I make a $w?", "~Is $c bigger than $d?", "~What colour is a $w?", "~Who discovered $y?", "~What do you know about $n?", "~Which river runs through $c?"]
ASK_DO = ["Write a [Python|Rust|Java] program that sorts a file.", "Give me medical advice.", "Write a poem about $w.", "Write a haiku about $w.", "Summarize the news.", "Summarize: The $w $x was $o.", "Summarize this text: $n lives in $c. It is a $o place.", "Can you write code for me?", "Recommend a movie.", "Solve this puzzle about $w.", "Write an essay on $w.", "Help me with my $w homework.", "Draw a $w.", "Translate '$w $x' to $g.", "Translate $w into $g.", "How do you say $w in $g?", "Translate this into $g: $w", "Play a game with me.", "Plan a trip to $c.", "Tell me a joke.", "Sing a song.", "Write a letter to $n.", "Sort these words: $w $x $e", "Write an email to $n.", "Give me a recipe with $w.", "Make a plan for $k.", "Book a flight to $c.", "Remind me on $k.", "Say something funny.", "Fix this code: $w($x)",
          "~Compose a song about $w.", "~Please translate '$w' to $g.", "~Give me a summary: $n went to $c.", "~Write some $g text about $w.", "~Buy me a $w.", "~Tell me something about $y and $w in verse."]
LANGUAGES = "French German Spanish Italian Polish Dutch Swedish Latin".split()


def chat(v):
    """Greetings, names, thanks, stories, and what the model declines in one sentence."""
    r = v.r; k = r.random(); ms = []; n = v.first()
    U = lambda *s, **kw: ms.append(("user", v.ask(*s, **kw))); A = lambda *s, **kw: ms.append(("assistant", v.say(*s, **kw)))
    if k < .1:
        U("Hi", "Hello", "Hello!", "Hey", "Hi there!", "Good morning", "Good evening!", "hi", "hello", "hello there", "Hey, how are you?", "How are you?", "hey", "Hi!", "Good morning!", "~Hello, good day!", "~Hey there"); A("Hello! How can I help you?")
    elif k < .25:
        U("Hi, I am $n.", "My name is $n.", "Hello, my name is $n.", "I'm $n, nice to meet you.", "I am $n.", "Call me $n.", "my name is $n", "This is $n.", "~Good morning, $n here.", "~You can call me $n.", n=n); A("Nice to meet you, $n! How can I help?", n=n)
        if r.random() < .2: U("Thanks!", "OK", "Great."); A("You are welcome!")
        U("What is my name?", "Do you remember my name?", "What's my name?", "Who am I?", "what is my name", "Tell me my name.", "~Do you know what I am called?", "~Say my name."); A("Your name is $n.", n=n)
    elif k < .29: U("Bye", "Goodbye", "See you later", "Good night", "bye!", "See you!", "~I have to go now. Bye."); A("Goodbye!")
    elif k < .33: U("Thanks!", "Thank you", "thanks a lot", "Cool", "Great", "OK", "Nice!", "ok", "Thank you very much!", "~Many thanks!"); A("You are welcome!")
    elif k < .42:
        a, p = r.choice(ANIMAL), r.choice(PLACES); art = a_or_an(a)
        if r.random() < .6: U("[Tell me|Write] a short story about $r $a named $n.", "A story about $n the $a, please.", "Tell a story about $r $a called $n.", "~I want a story about $r $a named $n.", a=a, n=n, r=art); A(story(v, n, a, p))
        else: U("Tell me a story about $r $a.", "[Tell me|Write] a short story about $r $a.", "A story with $r $a, please.", "Tell me a story.", "Write a short story.", "~May I hear a story about $r $a?", a=a, r=art); A(story(v, v.first(), next((x for x in ANIMAL if x in ms[-1][1].split()), a), p))
    elif k < .47:
        U("What is the weather in $c?", "How is the weather in $c?", "What time is it in $c?", "What is the time?", "Search for $t.", "What day is it?", "Set a timer for five minutes.", "What is the weather?", "~Is it warm in $c?", c=v.city(), t=v.topic()); A("I cannot do that without a tool. Add a tool to the request and I will call it.")
    else:
        do = r.random() < .42
        odd = v.invented(2).lower() if r.random() < .6 else v.plain_word()
        U(*(ASK_DO if do else ASK_OTHER), w=v.plain_word(), x=v.plain_word(), c=v.city(), d=v.city(), n=v.full() if r.random() < .5 else v.first(), y=r.choice(COUNTRY), o=r.choice(COLOR), e=odd, t=r.randint(10, 99), g=r.choice(LANGUAGES), k=r.choice(WEEK)); A(DECLINE[do])
    return dict(kind="chat", messages=ms, want=ms[-1][1])
