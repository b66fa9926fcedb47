"""Small tasks with an answer that can be checked: sums, word lists, JSON from a sentence, names, and what the model declines."""
from values import ANIMAL, CODE, COLOR, JOB, WEEK, COUNTRY, FIRST, a_or_an, cap, expand, to_json
from values import WORDS


# ---------------------------------------------------------------- sums
SUM = ["What is $a + $b?", "[Add|add] $a and $b.", "$a plus $b?", "Calculate $a + $b.", "How much is $a plus $b?", "$a+$b", "$a + $b", "$a + $b =", "What's $a + $b?", "what is $a+$b?", "Compute $a + $b.", "What is $a plus $b?",
       "What is the sum of $a and $b?", "How much is $a + $b?", "Hi! What is $a + $b?", "$a and $b, added?", "Please add $a and $b.", "Can you add $a and $b?", "Sum: $a + $b", "$a+$b=?", "Tell me $a + $b.", "If I have $a and get $b more, how many do I have?", "[Work out|Solve] $a + $b.",
       "What do $a and $b make?", "What do you get [if|when] you add $a to $b?", "Add $a to $b.", "$a and $b together?", "How much are $a and $b together?", "I want the sum of $a and $b.", "Give me $a plus $b, please.", "Tell me what $a and $b add up to.", "What is the total of $a and $b?", "Can you tell me what $a + $b is?", "Do you know what $a plus $b is?", "Sum up $a and $b.", "Put $a and $b together: how much?", "What do I get for $a and $b together?", "What do I get if I add $b to $a?", "The total of $a and $b, please.", "Sum of $a and $b, please.", "How many is $a plus $b?", "How many do $a and $b make?", "How many are $a plus $b?", "How many in all: $a and $b?", "I have $a and $b. How many is that together?", "How many do I have if I put $a and $b together?", "$a and $b: how many together?", "How many is that together, $a and $b?", "How many are there in all, $a and $b?", "$a $w and $b $w: how many $w together?", "How many $w are $a $w and $b $w?", "Together, $a and $b are how many?", "With $a and $b, how many are there?", "I had $a $w and got $b. How many are they now?", "~What do I get when I add $a and $b?", "~The sum of $a and $b, please.", "~How many are $a and $b together?", "~Could you tell me what $a plus $b is?"]
DIFF = ["What is $a - $b?", "[Subtract|subtract] $b from $a.", "$a minus $b?", "Calculate $a - $b.", "How much is $a minus $b?", "$a-$b", "$a - $b", "$a - $b =", "What's $a - $b?", "what is $a-$b?", "Compute $a - $b.", "What is $a minus $b?",
        "What is the difference of $a and $b?", "How much is $a - $b?", "Hi! What is $a - $b?", "Please subtract $b from $a.", "Take $b from $a.", "$a-$b=?", "Tell me $a - $b.", "If I have $a and give away $b, how many are left?", "[Work out|Solve] $a - $b.",
        "What do you get [if|when] you subtract $b from $a?", "Take away $b from $a.", "What is left of $a after taking away $b?", "How much is left when I take $b from $a?", "$a take away $b?", "I want $a minus $b.", "Give me $a minus $b, please.", "Can you tell me what $a - $b is?", "Do you know what $a minus $b is?", "What remains when $b is taken from $a?", "How much more is $a than $b?", "What is $b less than $a?", "Remove $b from $a: what is left?", "$a less $b?", "How much is $a less $b?", "What is $a less $b?", "$a, less $b.", "$a without $b?", "How much is $a without $b?", "What is $a without $b?", "What remains of $a after $b?", "What remains of $a when I take $b?", "What remains if $b is taken off $a?", "$b off $a?", "What do I get when I subtract $b from $a?", "What do I get if I take $b from $a?", "How many is $a minus $b?", "How many are $a minus $b?", "How many are left of $a when $b are gone?", "$b of $a are gone. How many are left?", "I had $a $w and lost $b. How many are left?", "Of $a $w I gave away $b. How many do I still have?", "How many remain of $a less $b?", "How many more than $b is $a?", "~What do I get when I take $b away from $a?", "~$a less $b, please.", "~What remains of $a without $b?", "~Could you tell me what $a minus $b is?"]
TIMES = ["What is $a * $b?", "Multiply $a by $b.", "$a times $b?", "Calculate $a x $b.", "How much is $a times $b?", "$a*$b", "What is $a x $b?", "$a * $b", "Tell me what $a times $b is.", "What do I get when I multiply $a and $b?", "The result of $a * $b, please.", "Product of $a and $b?", "~What is the product of $a and $b?"]


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
        a, b = numbers(v); thing = "" if v.held else v.item() + "s"
        if r.random() < .53: q, answer, total = v.ask(*SUM, a=a, b=b, w=thing), f"{a} + {b} = {a + b}.", a + b
        else:
            if a < b and r.random() < .9: a, b = b, a
            q, answer, total = v.ask(*DIFF, a=a, b=b, w=thing), f"{a} - {b} = {a - b}.", a - b
        ms += [("user", q), ("assistant", answer)]
        if not v.held and r.random() < .2: ms += again(v, total)
    return dict(kind="sum", messages=ms, want=str(total))


def again(v, total):
    """A sum that goes on from the last result."""
    b = v.r.randint(1, 50)
    if v.r.random() < .5 or b > total: return [("user", v.ask("And plus $b?", "Add $b to that.", "Now add $b.", "Plus $b?", "$b more, please.", "Add another $b.", "And with $b more?", "And then plus $b?", "Increase it by $b.", "And another $b more?", "And then $b more?", "What is it with $b more?", "Now $b more.", "And $b on top?", "~And $b more?", b=b)), ("assistant", f"{total} + {b} = {total + b}.")]
    return [("user", v.ask("And minus $b?", "Subtract $b from that.", "Now take away $b.", "Minus $b?", "$b less, please.", "Take $b off.", "And with $b less?", "And then minus $b?", "Decrease it by $b.", "And then $b less?", "What is it with $b less?", "Now $b less.", "And what with $b less?", "And $b off?", "~And $b less?", b=b)), ("assistant", f"{total} - {b} = {total - b}.")]


def drill(v):
    """Many sums in a row, of which only the results are learnt: the densest practice there is."""
    r = v.r; parts = [("<|im_start|>user\nSums, please.<|im_end|>\n<|im_start|>assistant\n", False)]
    for _ in range(14):
        a, b = numbers(v) if r.random() < .8 else (r.randint(20, 198), r.randint(1, 50))
        if r.random() < .53: parts += [(f"{a} + {b} =", False), (f" {a + b}.", True)]
        else:
            if a < b and r.random() < .9: a, b = b, a
            parts += [(f"{a} - {b} =", False), (f" {a - b}.", True)]
        parts.append(("\n", False))
    parts[-1] = ("<|im_end|>", True); return parts + [("<|endoftext|>", False)]


def writing(v):
    """Words in capitals and in small letters, many in a row, of which only the results are learnt."""
    r = v.r; parts = [("<|im_start|>user\nWords, please.<|im_end|>\n<|im_start|>assistant\n", False)]
    for word in v.words(14, r.choice([.8, .5, .1])):
        parts += [(f"Uppercase: {word}\n", False), (word.upper() + "\n", True)] if r.random() < .7 else [(f"Lowercase: {word.upper()}\n", False), (word + "\n", True)]
    return parts + [("<|im_end|>", True), ("<|endoftext|>", False)]


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
        q = v.ask("How much do $n tokens cost at $$p per million tokens?", "What is the price of $n tokens at $$p per million?", "[A million tokens cost $$p|The price is $$p per million tokens]. How much are $n tokens?", "What do $n tokens cost at $$p per million?", "With a price of $$p per million tokens, what do $n tokens cost?", "I used $n tokens at $$p per million. What do I pay?", "At $$p a million, how much is $n tokens?", "What is the cost of $n tokens when a million costs $$p?", "How much do I pay for $n tokens at $$p per million tokens?", "~At $$p per million tokens, what do I pay for $n tokens?", n=n, p=p)
        s = f"{n} tokens are {plain(n / 1e6)} million tokens. {plain(n / 1e6)} * ${p} = ${want}."
    elif k == 3:
        speed, want = r.choice([5, 10, 20, 25, 40, 50, 100]), r.randint(2, 30); n = speed * want
        q = v.ask("How long do $n tokens take at $s tokens per second?", "At $s tokens per second, how many seconds do I need for $n tokens?", "A model makes $s tokens per second. How long does an answer of $n tokens take?", "How many seconds does it take to make $n tokens at $s tokens per second?", "$n tokens at $s tokens per second: how long?", "At a speed of $s tokens per second, how long do $n tokens take?", "How long for $n tokens if I get $s tokens per second?", "~How many seconds are $n tokens at $s tokens per second?", n=n, s=speed)
        s = f"{n} / {speed} = {want}, so it takes {want} seconds."
    elif k == 4:
        n = r.randint(1, 90) * 100; want = plain(n / 1000)
        if r.random() < .5: q, s = v.ask("Convert $n milliseconds to seconds.", "How many seconds are $n ms?", "$n ms in seconds?", "What is $n milliseconds in seconds?", "How many seconds is $n ms?", "Turn $n ms into seconds.", "~What are $n ms in seconds?", n=n), f"{n} ms are {want} seconds."
        else: q, s, want = v.ask("Convert $c seconds to milliseconds.", "How many ms are $c seconds?", "$c seconds in ms?", "What is $c seconds in milliseconds?", "How many milliseconds is $c seconds?", "Turn $c seconds into ms.", "~What are $c seconds in ms?", c=want), f"{want} seconds are {n} ms.", n
    elif k == 5:
        ms = r.choice([1, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100]); want = 1000 // ms
        q = v.ask("How many tokens per second is $m ms per token?", "Each token takes $m ms. How many tokens per second is that?", "If a token takes $m ms, how many tokens per second do I get?", "At $m ms for each token, what is the speed in tokens per second?", "One token in $m ms: how many tokens per second?", "How many tokens a second are made at $m ms per token?", "~At $m ms per token, how many tokens per second do I get?", m=ms); s = f"1000 / {ms} = {want}, so it is {want} tokens per second."
    elif k == 6:
        a, b = r.randint(10, 99), r.randint(10, 99); want = a + b
        q = v.ask("A call used $a prompt tokens and $b completion tokens. How many in total?", "Prompt: $a tokens, answer: $b tokens. What is the total?", "With $a prompt tokens and $b answer tokens, how many tokens is that in total?", "How many tokens did I use with $a in the prompt and $b in the answer?", "Total of $a prompt tokens and $b completion tokens?", "$a tokens in, $b tokens out. How many together?", "~How many tokens are $a prompt tokens and $b answer tokens?", a=a, b=b); s = f"{a} + {b} = {want}, so the total is {want} tokens."
    else:
        u, f, w = r.choice([("minutes", 60, "seconds"), ("hours", 60, "minutes"), ("days", 24, "hours"), ("weeks", 7, "days"), ("kilometers", 1000, "meters"), ("kilograms", 1000, "grams")]); n = r.randint(2, 12); want = n * f
        q = v.ask("How many $w are $n $u?", "Convert $n $u to $w.", "What is $n $u in $w?", "$n $u in $w?", "How many $w is $n $u?", "Tell me how many $w are in $n $u.", "What are $n $u in $w?", "$n $u: how many $w?", "~How many $w do $n $u have?", n=n, u=u, w=w); s = f"{n} * {f} = {want}, so {n} {u} are {want} {w}."
    return dict(kind="units", messages=[("user", q), ("assistant", s)], want=str(want))


# ---------------------------------------------------------------- word lists
ORDER = {
 "upper": ["[Write|Put] this in uppercase: $s", "Uppercase: $s", "uppercase: $s", "Make this uppercase: $s", "Convert to upper case: $s", "In capital letters: $s", "Upper case, please: $s", "Turn this into capitals: $s", "UPPERCASE this: $s", "Write in capitals: $s", "Please write this in capital letters: $s", "Change this to capitals: $s", "Change into uppercase: $s", "Capitalize all letters: $s", "Capitalize this: $s", "Please make every letter a capital: $s", "To upper case: $s", "All caps: $s", "Upper case: $s", "Write every letter big: $s", "I want this in upper case: $s", "Shout this: $s", "Please put every word in upper case: $s", "~Please capitalize every letter: $s", "~Change to upper case: $s"],
 "lower": ["[Write|Put] this in lowercase: $s", "Lowercase: $s", "lowercase: $s", "Make this lowercase: $s", "Convert to lower case: $s", "In small letters: $s", "Lower case, please: $s", "Turn this into small letters: $s", "Change this to small letters: $s", "Change into lowercase: $s", "To lower case: $s", "Lower case: $s", "Please make every letter small: $s", "Please write this in lower case: $s", "I want this in lower case: $s", "Use lower case only: $s", "No capitals, please: $s", "Put all of this into small letters: $s", "~Change to lower case: $s", "~Please use small letters only: $s"],
 "reverse": ["Reverse the order of the words: $s", "Reverse the words: $s", "reverse: $s", "Write these words in reverse order: $s", "Reverse this list: $s", "Reverse: $s", "Say these words backwards: $s", "Put the words in reverse order: $s", "Turn the order around: $s", "Please reverse these words: $s", "What is this list in reverse: $s", "List the words backwards: $s", "Order these from the last to the first: $s", "Start with the last word and end with the first: $s", "Give me the list in reverse order: $s", "What do I get when I reverse: $s", "List them in the opposite order: $s", "Reverse order, please: $s", "Please list these words backwards: $s", "I want these the other way round: $s", "[List|Write|Order|Say|Put] these words from last to first: $s", "From last to first, please: $s", "[List|Write|Name|Show] them from the last to the first: $s", "List these in reverse order: $s", "List these backwards: $s", "List these words the other way round: $s", "What is the reverse of: $s", "The reverse order, please: $s", "In reverse order: $s", "~List these from last to first: $s", "~What is the reverse order of: $s"],
 "first": ["What is the first word of: $s", "Give me the first word: $s", "First word: $s", "first word: $s", "What is the first word? $s", "Which word comes first: $s", "Tell me the first word of: $s", "The first of these: $s", "Name the first of these words: $s", "Which of these words stands at the start? $s", "Which word is first? $s", "Say only the first word: $s", "Please name the first word: $s", "What word does this start with: $s", "The first word, please: $s", "Which is the first word in this list: $s", "Find the first word in: $s", "~Name the first word in: $s", "~Which word stands first? $s"],
 "last": ["What is the last word of: $s", "Give me the last word: $s", "Last word: $s", "last word: $s", "What is the last word? $s", "Which word comes last: $s", "Tell me the last word of: $s", "The last of these: $s", "Name the last of these words: $s", "Which of these words stands at the end? $s", "Which word is last? $s", "Say only the last word: $s", "Please name the last word: $s", "What word does this end with: $s", "The last word, please: $s", "Which is the last word in this list: $s", "Find the last word in: $s", "~Name the last word in: $s", "~Which word stands last? $s"],
 "repeat": ["Repeat after me: $s", "Repeat this: $s", "Say exactly this: $s", "Echo: $s", "Say: $s", "repeat: $s", "Please repeat: $s", "Please say: $s", "Say this: $s", "Say it again: $s", "Please repeat these words: $s", "Copy this: $s", "Write this again: $s", "Again, please: $s", "Now you say: $s", "Please say after me: $s", "Write the same: $s", "~Please say this again: $s"],
 "count": ["How many words are in this text: $s", "Count the words: $s", "How many words? $s", "count words: $s", "Word count: $s", "What is the word count of: $s", "How many words are in: $s", "How many words does this have: $s", "Please count these words: $s", "Tell me the number of words: $s", "Give me the number of words: $s", "The number of words, please: $s", "How many words do you see here: $s", "~What is the number of words in: $s"]}
NOW = {"upper": ["Now in upper case.", "In capitals, please.", "Uppercase that.", "And in upper case?", "In capital letters, please.", "Now all in capitals.", "Write them in upper case.", "And the same in capitals?", "And all in capital letters?", "Now in capital letters.", "And now in upper case?", "In capitals?", "~And in capital letters?"], "reverse": ["Now reverse them.", "Reverse the words.", "And in reverse order?", "Now backwards.", "From the last one to the first, please.", "Now the other way round.", "Reverse it.", "Turn the order around.", "Now in the order from last to first.", "From last to first, please.", "Now say them from the last to the first.", "And now backwards.", "Now in reverse order.", "~Now from last to first."],
       "first": ["What is the first word?", "And the first word?", "Which word comes first?", "Which is the first one?", "Which one comes first?", "And which is first?", "First word?", "~Which one is first?"], "last": ["What is the last word?", "And the last word?", "And the last?", "Which word comes last?", "Which is the last one?", "Which one comes last?", "And which is last?", "Last word?", "~Which one is last?"], "count": ["How many words are there?", "How many are they?", "How many words are that?", "Count them.", "And how many words?", "~How many words is that?"]}
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
        k = kind or r.choice(["upper", "upper", "lower", "lower", "reverse", "reverse", "reverse", "reverse", "reverse", "first", "last", "repeat", "count"])
        words = v.words(r.randint(2, 6) if v.held or r.random() < .8 else r.randint(5, 9), .93 if v.held else r.choice([.93, .93, .6, .2])); joint = ", " if r.random() < .25 else " "
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
        v.ask("$n is $a years old, lives in $c and works as $an $j.", "$n, $a, is $an $j from $c.", "My name is $n. I am $a and I live in $c, where I work as $an $j.", "$n is $an $j in $c and is $a years old.", "Meet $n, $an $j aged $a from $c.", "I talked to $n ($a), $an $j who lives in $c.", "At the age of $a, $n is $an $j in $c.", "In $c there is $an $j called $n, aged $a.", "$n works as $an $j in $c and is $a.", "In $c, $n ($a) works as $an $j.", "$an $j from $c, $n, is $a years old.", "Aged $a, $n lives in $c and is $an $j.", "Our $j $n is $a and comes from $c.", "Name: $n. Age: $a. City: $c. Job: $j.", "My neighbour $n, $a, moved to $c to work as $an $j.", "At $a years, $n still works as $an $j in $c.", "~At $a, $n works in $c as $an $j.", n=n + " " + l, a=a, c=c, j=j, an=an)
    if k == 2: return {"name": (n, "string"), "age": (a, "integer")}, v.ask("$n is $a.", "$n is $a years old.", "$n turned $a last week.", "I am $n and I am $a.", "$n, $a years old, called.", "My brother $n is $a.", "My friend $n turned $a.", "$n will be $a next week.", "Soon $n will be $a years old.", "At $a, $n is young.", "$a years old: that is $n.", "The age of $n is $a.", "My neighbour $n is $a years of age.", "Today $n is $a.", "Name: $n, age: $a", "She is called $n and is $a.", "I know $n, who is $a.", "~My friend $n will be $a soon.", n=n, a=a)
    if k == 3:
        q, i, p = r.randint(2, 40), v.item(), r.randint(1, 300)
        if r.random() < .5: i += "es" if i.endswith(("ch", "sh", "f")) else "s"
        return {r.choice(["item", "product"]): (i, "string"), "quantity": (q, "integer"), "price": (p, "number"), "customer": (n, "string")}, \
        v.ask("$n ordered $q of the product $i for $p dollars each.", "Order from $n: $q x $i at $p dollars.", "$n wants to buy $q pieces of $i, price $p.", "$n bought $q $i at $p dollars each.", "We sold $n $q $i, $p dollars each.", "$q $i were sold to $n at $p dollars each.", "$n gets $q $i for $p dollars each.", "$n took $q $i and paid $p dollars for each.", "Please send $q $i to $n, price $p dollars.", "Sold: $q $i at $p dollars to $n.", "We delivered $q $i to $n for $p dollars a piece.", "For $p dollars each, $n bought $q $i.", "Customer $n: $q $i, $p dollars each.", "We sold $q $i to $n. The price was $p dollars each.", "We sold $q $i to $n and got $p dollars for each.", "We shipped $q $i to $n, $p dollars apiece.", "I sold $q of my $i to $n, each for $p dollars.", "They sold $q $i for $p dollars each to $n.", "$q $i for $n, at $p dollars apiece, please.", "You sold $n $q $i, each at $p dollars.", "An order of $q $i at $p dollars came from $n.", "At $p dollars apiece we sent $q $i to $n.", "~We sold $q $i to $n for $p dollars apiece.", n=n, q=q, i=i, p=p)
    if k == 4:
        d, h, e = r.choice(WEEK), r.randint(8, 20), r.choice(["meeting", "lunch", "workshop", "call", "concert", "party", "interview", "class"])
        return {r.choice(["event", "title"]): (e, "string"), "day": (d, "string"), r.choice(["place", "location"]): (c, "string"), "hour": (h, "integer")}, \
        v.ask("The $e is on $d at $h in $c.", "We have a $e in $c on $d at $h o'clock.", "On $d at $h there is a $e in $c.", "$d, $h: $e in $c.", "Come to our $e in $c on $d at $h.", "You are invited to the $e on $d at $h in $c.", "Please join the $e on $d, $h o'clock, in $c.", "The $e takes place in $c, $d at $h.", "There will be a $e in $c, on $d at $h.", "Do not miss the $e in $c on $d at $h.", "In $c, the $e starts at $h on $d.", "Please note: $e, $c, $d, $h o'clock.", "~Please come to the $e in $c, $d at $h.", e=e, d=d, h=h, c=c)
    if k == 5:
        e, p = v.email(), f"{r.randint(100, 999)}-{r.randint(1000, 9999)}"
        return {"name": (n, "string"), "email": (e, "string"), "phone": (p, "string")}, v.ask("You can reach $n at $e or by phone at $p.", "Contact: $n, $e, $p.", "$n uses the address $e and the number $p.", "Write an email to $n at $e or dial $p.", "Call $n at $p or write to $e.", "$n: $e, $p", "The email of $n is $e and the phone is $p.", "Ask $n ($e, phone $p).", "To talk to $n, use $e or call $p.", "My name is $n, my email is $e, my phone is $p.", "Phone $p, email $e: that is $n.", "Write $n a mail at $e or phone $p.", "Please write a letter to $n, or use $e or $p.", "Send your words to $n at $e, or ring $p.", "Mail $n at $e or call the number $p.", "Write to $e to reach $n, or call $p.", "Speak to $n: $p, or write to $e.", "~Write to $n at $e, or call $p.", n=n, e=e, p=p)
    if k == 6:
        m = r.choice(CODE) + "-" + r.choice(["1b", "3b", "8b", "70b", "mini", "large"]); x, y = r.randint(5, 900), r.randint(10, 4000)
        return {"model": (m, "string"), "latency_ms": (x, "integer"), "tokens": (y, "integer")}, v.ask("The model $m took $x ms and produced $y tokens.", "$y tokens came from $m after $x ms.", "Log: model=$m latency=$x ms tokens=$y", "$m needed $x ms and wrote $y tokens.", "It took $m $x ms to write $y tokens.", "In $x ms, $m made $y tokens.", "For $y tokens, $m took $x ms.", "$m: $x ms, $y tokens", "$m wrote $y tokens and needed $x ms for it.", "For $y tokens $m needed $x ms.", "$m used $x ms to make $y tokens.", "The latency of $m was $x ms for $y tokens.", "We measured $m: $y tokens in $x ms.", "~$m needed $x ms for $y tokens.", m=m, x=x, y=y)
    if k == 7:
        co, y, b = r.choice(COLOR), r.randint(1980, 2025), v.invented()
        return {"brand": (b, "string"), "color": (co, "string"), "year": (y, "integer"), "owner": (n, "string")}, v.ask("$n owns a $co $b from $y.", "The $co $b was built in $y and belongs to $n.", "For sale by $n: a $co car, brand $b, year $y.", "$n drives a $co $b that was built in $y.", "$n has a $co car of the brand $b from $y.", "A $co $b, built in $y, owner $n.", "The car of $n is a $co $b, made in $y.", "In $y $n bought a $co $b.", "$n sells a car: $b, $co, built in $y.", "My friend $n drives a $y $b in $co.", "~$n drives a $co car of the brand $b, built in $y.", n=n, co=co, b=b, y=y)
    if k == 8:
        d, h, i = v.city(), v.clock(), v.ident()
        return {r.choice(["from", "origin"]): (c, "string"), r.choice(["to", "destination"]): (d, "string"), r.choice(["flight", "number"]): (i, "string"), r.choice(["time", "departure"]): (h, "string")}, \
          v.ask("Flight $i leaves $c for $d at $h.", "At $h flight $i flies from $c to $d.", "$n takes flight $i from $c to $d at $h.", "From $c to $d at $h with flight $i.", "Flight $i, from $c to $d, departs at $h.", "Departure $h: flight $i from $c to $d.", "$i: $c to $d, $h", "$n flies to $d from $c with $i at $h.", "The flight to $d leaves $c at $h and has the number $i.", "To get from $c to $d, take flight $i at $h.", "~From $c to $d: flight $i, departure $h.", i=i, c=c, d=d, h=h, n=n)
    country = r.choice(COUNTRY)
    return {"city": (c, "string"), "country": (country, "string")}, v.ask("I moved to $c in $y.", "$n lives in $c, $y.", "$c is a city in $y.", "We flew to $c, the capital of $y.", "Greetings from $c, $y.", "We are in $c in $y.", "Hello from $c in $y!", "$n comes from $c in $y.", "I like $c in $y.", "We spent a week in $c, $y.", "Have you been to $c in $y?", "Our office is in $c ($y).", "~Greetings from $c in $y!", c=c, y=country, n=n)


# A question that names no keys gets the usual ones: of two names for one thing, the model cannot know which is meant.
USUAL = {"product": "item", "title": "event", "location": "place", "origin": "from", "destination": "to", "number": "flight", "departure": "time"}


def extraction(v):
    r = v.r; fields, s = record(v); ks = list(fields); sysm = None
    if r.random() < .6: ks = r.sample(ks, r.randint(1, len(ks)))
    out = {k: fields[k][0] for k in ks}; x = r.random()
    named = ", ".join(ks) if len(ks) == 1 or r.random() < .5 else ", ".join(ks[:-1]) + " and " + ks[-1]
    schema = to_json({"type": "object", "properties": {k: {"type": fields[k][1]} for k in ks}, "required": ks}); simple = to_json({k: fields[k][1] for k in ks})
    if x < .55:
        q = v.ask("[Extract|Get] $l as JSON: $s", "Extract the fields $l as JSON.\n$s", "Return JSON with $l.\nText: $s", "$s\n\nGive me $l as JSON.", "Read this text and answer with JSON ($l): $s", "JSON please, fields $l: $s", "Extract the $l as JSON: $s", "Return a JSON object with keys $l. $s", "Extract JSON with keys $l: $s", "Turn this into JSON with $l: $s", "Please make JSON with $l: $s", "Make a JSON object with $l from this text: $s", "Make JSON out of this, with the fields $l: $s", "Create JSON with the keys $l: $s", "Please give me JSON with $l. $s", "I want JSON with the keys $l: $s", "I need JSON with $l from this: $s", "I want $l in JSON. $s", "$s Give me $l as JSON.", "$s Put $l into a JSON object.", "$s Return $l as JSON.", "$s I need the $l as JSON.", "$s\nNow write JSON with the keys $l.", "$s Please extract $l as JSON.", "Put $l of this text into JSON: $s", "Find $l in this text and write them as JSON: $s", "From this text make a JSON object with $l: $s", "Can you get $l as JSON from this? $s", "JSON with $l: $s", "What are the $l? Answer in JSON. $s", "[I want|Give me|Show me|Find|List|Return|Get me|Collect|Take|Tell me|Send me|Read out|We need|You should give] $l [as|in|in the form of|written as] JSON[.|:|, please.|!] $s", "I need $l [in JSON|in the form of JSON|, all in JSON][.|:|!] $s", "[Now|Please|Then|Just|Only] [I need|I want|give|find|list|return|show] $l[, as JSON| in JSON|, in JSON]: $s", "$s [Give|List|Return|Show|Find|Get|Take|Collect|Send|Print] $l as [JSON|a JSON object|one JSON object|JSON, please].", "$s Write $l [as JSON|in JSON|into JSON].", "$s [I need|I want|We need|Now] $l [as|in] JSON.", "$s\n[Give|List|Write|Return] $l[.|:|, as JSON.]", "[Text|Input|Read]: $s\n[Output|Fields|Keys|JSON]: $l", "$l: JSON[.|, please.] $s", "JSON keys: $l\n$s", "[Make|Build|Create|Form] a JSON object of $l[.|:] $s", "~Please make JSON with the keys $l from this: $s", "~I need $l as JSON. $s", "~$s Write $l as a JSON object.", l=named, s=s)
    elif x < .72: q = v.ask("Extract data that matches this schema: $j\n$s", "Fill this JSON: $j\nText: $s", "Schema: $j\nText: $s", "$s\nFormat: $j", "Use this schema: $j\n$s", "Use the format $j for this text.\n$s", "Answer in this format: $j\n$s", "$s\nUse this JSON format: $j", "JSON in this format, please: $j\n$s", "Follow this schema: $j\n$s", "Write JSON like this: $j\n$s", "Please fill $j from this text: $s", "This is the format: $j\n$s", "~Use this format: $j\n$s", j=simple, s=s)
    elif x < .8: q = v.ask("Extract data that matches this JSON schema: $j\nText: $s", "Answer with JSON for this schema.\n$j\n$s", j=schema, s=s)
    elif x < .9:
        fields = {USUAL.get(k, k): x for k, x in fields.items()}; ks = list(fields); out = {k: fields[k][0] for k in ks}; q = v.ask("Extract the fields as JSON: $s", "Turn this into JSON: $s", "As JSON: $s", "Extract all fields as JSON.\n$s", "Make JSON from this: $s", "Make this JSON: $s", "Convert to JSON: $s", "$s As JSON, please.", "Give me this as JSON: $s", "Write this as JSON: $s", "Please put this into JSON: $s", "JSON of this, please: $s", "All fields as JSON: $s", "~Make JSON of this: $s", s=s)
    else: sysm = v.ask("Answer only with JSON that has the fields $l.", "Extract $l and reply in JSON.", "You extract data. Reply with JSON: $j", "Reply only with JSON: $l.", "Answer with a JSON object that has $l.", "Read the text and reply with $l as JSON.", "You turn text into JSON with the keys $l.", "Reply with a JSON object. Its fields are $l.", "Return only a JSON object with $l.", "~Reply with a JSON object of $l.", l=named, j=simple); q = s
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
       "asdf", "$w $x", "$e $w", "???", "hm", "Who won the [match|game|race|war|prize]?", "Which [country|player|party|horse] won?", "Which $w won?", "What is the [population|size|area|flag|language|president] of $y?", "What is the [largest|longest|highest|oldest] $w in $y?", "How many [birds|cats|rivers|islands|people] are there in $y?", "Why do [cats|dogs|fish|people|babies] [sleep|swim|laugh|cry|run]?", "Why do $e $w?", "Why are [leaves|flowers|bananas] $o?", "How do I [build|paint|clean|grow|repair|draw] a $w?", "How do you make [bread|soup|cheese|a $w]?", "Is $c [older|nicer|smaller|farther] than $d?", "Is a $w bigger than a $x?", "What color is [the sky|a $w|grass]?", "What colour are $e?", "Who [found|built|painted|wrote] $e?", "Who discovered [America|gold|the moon]?", "What do you think of $n?", "What do you know about [$c|$y|the $w|history|football]?", "Do you know anything about $c?", "Which [lake|mountain|road|train|street] is in $c?", "Where does the [$w|river] come from?", "Which [river|city|country] is the longest?", "Can you tell me about $n?", "What is the name of the [king|queen|mayor] of $c?", "When did [the war|the $w] end?", "What is the best [song|film|book|food] in $y?", "What does a $w eat?", "Can $e fly?", "Are you [happy|sad|hungry|in love]?", "How do I get to $c?", "Have you ever been to $c?", "What time does the $w open?", "Did $n win?", "Does $n like $w?", "How can I make a $w?", "How do I make $o $w?", "How do I make my own $w?", "How do I make a $w at home?", "How do I make $e?", "How do I make a [cake|house|boat|dress]?", "How are $w made?", "How do people make a $w?", "~Which team won the cup?", "~How big is the population of $y?", "~Why do birds sing?", "~How do I make a $w?", "~Is $c bigger than $d?", "~What colour is a $w?", "~Who discovered $y?", "~What do you know about $n?", "~Which river runs through $c?"]
ASK_DO = ["Write a [Python|Rust|Java] program that sorts a file.", "Give me medical advice.", "Write a poem about $w.", "Write a haiku about $w.", "Summarize the news.", "Summarize: The $w $x was $o.", "Summarize this text: $n lives in $c. It is a $o place.", "Can you write code for me?", "Recommend a movie.", "Solve this puzzle about $w.", "Write an essay on $w.", "Help me with my $w homework.", "Draw a $w.", "Translate '$w $x' to $g.", "Translate $w into $g.", "How do you say $w in $g?", "Translate this into $g: $w", "Play a game with me.", "Plan a trip to $c.", "Tell me a joke.", "Sing a song.", "Write a letter to $n.", "Sort these words: $w $x $e", "Write an email to $n.", "Give me a recipe with $w.", "Make a plan for $k.", "Book a flight to $c.", "Remind me on $k.", "Say something funny.", "Fix this code: $w($x)",
          "Compose a [poem|letter|speech] about $w.", "Write some [poetry|text|lines|music] about $w.", "Write me a [song|joke|tale|rhyme] about $w.", "Please translate this to $g: $w $x", "Please translate $w for me.", "Can you translate '$w' into $g?", "Give me a summary of [the $w|this book|the news].", "Make a summary: $n met $m in $c.", "Summarize this: $n bought a $w.", "Shorten this text: $n went to see the $w in $d.", "Buy [a ticket|some $w] for me.", "Order a $w for me.", "Tell me something [nice|new|interesting] about $y.", "Tell me about $w in [rhyme|verse|$g].", "Make a picture of a $w.", "Paint a $w.", "Write $g text.", "Write code that prints $w.", "Invent a game with a $w.", "Call $n for me.", "Please [phone|visit|find] $n.", "Improve this sentence: the $w is $o.", "Correct my text: $w $x", "Explain this poem about $w.", "~Compose a song about $w.", "~Please translate '$w' to $g.", "Give me a summary: $n [saw|bought|has|likes] a $w.", "Give a summary: $n lives in $c.", "A summary, please: $n went home with $m.", "Give me a short summary of this: $n is in $c with a $w.", "~Give me a summary: $n went to $c.", "~Write some $g text about $w.", "~Buy me a $w.", "Say something about $w and $x in verse.", "Tell me about $y and $c in rhyme.", "Something about $w in verse, please.", "~Tell me something about $y and $w in verse."]
LANGUAGES = "French German Spanish Italian Polish Dutch Swedish Latin".split()


def chat(v):
    """Greetings, names, thanks, stories, and what the model declines in one sentence."""
    r = v.r; k = r.random(); ms = []; n = v.first()
    U = lambda *s, **kw: ms.append(("user", v.ask(*s, **kw))); A = lambda *s, **kw: ms.append(("assistant", v.say(*s, **kw)))
    if k < .1:
        U("Hi", "Hello", "Hello!", "Hey", "Hi there!", "Good morning", "Good evening!", "hi", "hello", "hello there", "Hey, how are you?", "How are you?", "hey", "Hi!", "Good morning!", "Good day!", "Hello, how is it going?", "Hey, good evening!", "Good afternoon", "Greetings!", "Hi, good morning", "Yo", "~Hello, good day!", "~Hey there"); A("Hello! How can I help you?")
    elif k < .25:
        U("Hi, I am $n.", "My name is $n.", "Hello, my name is $n.", "I'm $n, nice to meet you.", "I am $n.", "Call me $n.", "my name is $n", "This is $n.", "Hello, $n here.", "Hi, this is $n.", "Good evening, my name is $n.", "Please call me $n.", "People call me $n.", "I am called $n.", "~Good morning, $n here.", "~You can call me $n.", n=n); A("Nice to meet you, $n! How can I help?", n=n)
        if r.random() < .2: U("Thanks!", "OK", "Great."); A("You are welcome!")
        U("What is my name?", "Do you remember my name?", "What's my name?", "Who am I?", "what is my name", "Tell me my name.", "What am I called?", "Do you know my name?", "Say what my name is.", "How am I called?", "Do you know who I am?", "Please say my name.", "Do you still know my name?", "Do you know what my name is?", "Do you remember what I am called?", "Tell me what I am called.", "You know my name, do you?", "What did I say my name was?", "~Do you know what I am called?", "~Say my name."); A("Your name is $n.", n=n)
    elif k < .29: U("Bye", "Goodbye", "See you later", "Good night", "bye!", "See you!", "I must go. Goodbye.", "Bye bye", "OK, bye!", "I am leaving now.", "That is all. Bye.", "~I have to go now. Bye."); A("Goodbye!")
    elif k < .33: U("Thanks!", "Thank you", "thanks a lot", "Cool", "Great", "OK", "Nice!", "ok", "Thank you very much!", "Thanks so much!", "Many thanks for that.", "Perfect, thanks.", "That helps, thank you.", "Good, thanks", "~Many thanks!"); A("You are welcome!")
    elif k < .42:
        a, p = r.choice(ANIMAL), r.choice(PLACES); art = a_or_an(a)
        if r.random() < .6: U("[Tell me|Write] a short story about $r $a named $n.", "A story about $n the $a, please.", "Tell a story about $r $a called $n.", "I want to hear a story about $r $a called $n.", "Give me a story about $r $a named $n.", "Please write a story of $r $a called $n.", "~I want a story about $r $a named $n.", a=a, n=n, r=art); A(story(v, n, a, p))
        else: U("Tell me a story about $r $a.", "[Tell me|Write] a short story about $r $a.", "A story with $r $a, please.", "Tell me a story.", "Write a short story.", "I want a story about $r $a.", "Can you tell a story about $r $a?", "Please tell me a story with $r $a.", "Can I hear a story?", "~May I hear a story about $r $a?", a=a, r=art); A(story(v, v.first(), next((x for x in ANIMAL if x in ms[-1][1].split()), a), p))
    elif k < .47:
        U("What is the weather in $c?", "How is the weather in $c?", "What time is it in $c?", "What is the time?", "Search for $t.", "What day is it?", "Set a timer for five minutes.", "What is the weather?", "Is it cold in $c?", "Is it raining in $c?", "Will it snow in $c?", "How warm is it in $c?", "What date is it?", "~Is it warm in $c?", c=v.city(), t=v.topic()); A("I cannot do that without a tool. Add a tool to the request and I will call it.")
    else:
        do = r.random() < .42
        odd = v.invented(2).lower() if r.random() < .6 else v.plain_word()
        U(*(ASK_DO if do else ASK_OTHER), w=v.plain_word(), x=v.plain_word(), c=v.city(), d=v.city(), n=v.full() if r.random() < .5 else v.first(), m=v.first(), y=r.choice(COUNTRY), o=r.choice(COLOR), e=odd, t=r.randint(10, 99), g=r.choice(LANGUAGES), k=r.choice(WEEK)); A(DECLINE[do])
    return dict(kind="chat", messages=ms, want=ms[-1][1])
