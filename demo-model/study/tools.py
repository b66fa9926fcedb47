"""Conversations in which the model calls tools: the right one, with the arguments that the question names, and what it says of the result."""
from values import CODE, COLOR, SKY, WEEK, cap, to_json
from skills import plain

S, I, N = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def one_of(*values): return {"type": "string", "enum": list(values)}
def tool(name, about, arguments, needed=None): return {"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object", "properties": arguments, "required": list(arguments) if needed is None else needed}}}


def family(v, k=None):
    """-> name, description, schema of arguments, question, arguments, result, answer"""
    r, say, ask = v.r, v.say, v.ask; k = r.randrange(22) if k is None else k; c = v.city()
    if k in (0, 1):
        name = say("get_weather", "weather", "current_weather", "lookup_weather", "fetch_weather", "get_current_weather", "weather_report"); where = say("city", "location", "place", "town"); schema, args = {where: S}, {where: c}; unit = say("celsius", "fahrenheit")
        q = ask("What is the weather in $c?", "How is the weather in $c [today|now|right now]?", "Weather in $c?", "Do I need a jacket in $c today?", "Is it raining in $c?", "Tell me the weather in $c.", "How warm is it in $c?", "what's the weather like in $c", "What's the weather like in $c right now?", "Is it [cold|cloudy|windy|warm|hot|foggy] in $c?", "Is it snowing in $c [today|now]?", "Does it rain in $c?", "Check the weather in $c.", "Could you check how the weather is in $c?", "Can you tell me the weather in $c?", "Please check the weather for $c.", "Will I need an umbrella in $c?", "I am in $c. How is the weather?", "Give me the weather for $c.", "How cold is it in $c?", "What temperature is it in $c?", "~Is it sunny in $c?", "~Could you check the weather in $c for me?", c=c)
        if r.random() < .5:       # an optional argument: given only when the question names it
            schema[say("unit", "units")] = one_of("celsius", "fahrenheit")
            if r.random() < .5: args[list(schema)[1]] = unit; q += (say(" Use $u.", " Answer in $u.", " In $u, please.", u=unit) if q[-1] in "?." else say(" in $u", u=unit))
        t, sky = r.randint(-10, 38) if unit == "celsius" else r.randint(20, 100), r.choice(SKY); res = {say("temperature", "temp"): t, "unit": unit, say("condition", "conditions", "sky"): sky}
        if r.random() < .3: res = {"temp_c": t, say("condition", "sky"): sky}; unit = "celsius"
        return name, say("Get the current weather for a city", "Weather by place", "Look up the weather", "Get current weather information for a location"), schema, q, args, res, say("It is $t degrees $u in $c: $o.", t=t, u=unit, o=sky, c=c)
    if k in (2, 3):
        name = say("calculator", "calculate", "calc", "compute", "eval_math", "do_math"); where = say("expression", "expr", "formula", "input"); a, b, o = r.randint(2, r.choice([99, 999, 9999])), r.randint(2, r.choice([99, 999])), r.choice("+-*")
        e = f"{a} {o} {b}"; w = {"+": "plus", "-": "minus", "*": "times"}[o]; x = {"+": a + b, "-": a - b, "*": a * b}[o]
        return name, say("Evaluate a math expression", "Do exact arithmetic", "Calculate a formula"), {where: S}, ask("What is $e?", "Calculate $e.", "How much is $a $w $b?", "What is $a $w $b?", "Compute $e please.", "$a $w $b?", "Work out $e.", "Please calculate $e.", "Can you work out $a $w $b?", "Tell me what $e is.", "Solve $e for me.", "I need the result of $e.", "$e", "What do I get for $a $w $b?", "~Work out $a $w $b for me.", e=e, a=a, b=b, w=w), {where: e}, {say("result", "value", "answer"): x}, f"{e} = {x}."
    if k in (4, 5):
        name = say("search", "web_search", "search_web", "find_pages", "lookup", "internet_search"); where = say("query", "q", "text", "keywords"); t = v.topic(); n = r.choice(["An article", "A page", "A guide", "A report"]) + " about " + t; url = v.invented().lower() + ".org"
        return name, say("Search the web", "Find web pages", "Look something up online"), {where: S}, ask("Search for $t.", "Search the web for $t.", "Look up $t.", "Find information about $t.", "Can you search for $t?", "Search $t for me.", "Please search for $t.", "Look for $t on the web.", "Find $t for me.", "Find pages about $t.", "Google for $t.", "I want to read about $t.", "Find out about $t for me.", "What does the web say about $t?", "Please look up $t for me.", "Show me pages on $t.", "Google $t, please.", "Please google $t.", "Can you google $t?", "~Google $t for me.", t=t), {where: t}, {"results": [{"title": n, say("url", "site"): url}]}, f"I found: {n} ({url})."
    if k == 6:
        name = say("get_time", "current_time", "time_in_city", "clock", "world_clock", "local_time"); where = say("city", "location", "place"); h = v.clock()
        return name, say("Get the local time of a city", "Current time by place"), {where: S}, ask("What time is it in $c?", "Tell me the time in $c.", "Time in $c?", "What is the local time in $c?", "What is the time in $c?", "How late is it now in $c?", "What time do they have in $c?", "Do you know the time in $c?", "Please tell me what time it is in $c.", "$c time, please.", "What does the clock say in $c?", "~How late is it in $c?", c=c), {where: c}, {say("time", "local_time"): h}, f"It is {h} in {c}."
    if k == 7:
        m = r.randint(1, 90); where = say("minutes", "duration", "length_minutes")
        return say("set_timer", "start_timer", "timer", "countdown"), say("Start a timer", "Set a countdown in minutes"), {where: I}, ask("Set a timer for $m minutes.", "Start a $m minute timer.", "Timer: $m minutes", "Wake me in $m minutes.", "I need a timer for $m minutes.", "Please set a $m minute timer.", "Remind me in $m minutes.", "Count down $m minutes.", "Set a countdown of $m minutes.", "Ring in $m minutes.", "A timer of $m minutes, please.", "~I need a timer of $m minutes.", m=m), {where: m}, {"status": say("ok", "started", "running")}, f"Your timer is set for {m} minutes."
    if k == 8:
        a, b = say("to", "recipient"), say("subject", "text", "body"); n = v.first() if r.random() < .5 else v.email(); s = say("see you on $k", "the $w is ready", "I am late", "meeting in $c", "thank you for the $w", "happy birthday", "call me about the $w", k=r.choice(WEEK), w=v.word(), c=c)
        return say("send_email", "send_mail", "email", "send_message"), say("Send a message to a person", "Send an email"), {a: S, b: S}, ask("Send $n a message: $s", "Write to $n: $s", "Tell $n: $s", "Email $n with the text: $s", "Let $n know this: $s", "Message for $n: $s", "Please tell $n: $s", "Please write to $n: $s", "Send this to $n: $s", "Mail $n: $s", "Inform $n: $s", "I want to tell $n: $s", "Say to $n: $s", "~Let $n know: $s", n=n, s=s), {a: n, b: s}, {"status": say("sent", "ok", "delivered")}, f"I sent your message to {n}."
    if k == 9:
        x, y = r.sample(["USD", "EUR", "GBP", "JPY", "CHF", "INR", "BRL", "CAD", "SEK", "PLN"], 2); a, f, g = say("amount", "value"), say("from", "from_currency", "source"), say("to", "to_currency", "target"); m = r.randint(1, 900); z = round(m * r.uniform(.5, 2), 2)
        return say("convert_currency", "currency", "exchange", "fx_convert"), say("Convert money between currencies", "Exchange rates"), {a: N, f: S, g: S}, ask("Convert $m $x to $y.", "How much is $m $x in $y?", "$m $x in $y?", "Change $m $x into $y.", "What do I get in $y for $m $x?", "How many $y are $m $x?", "How many $y do I get for $m $x?", "Please convert $m $x into $y.", "I have $m $x. How much is that in $y?", "Exchange $m $x to $y.", "$m $x to $y, please.", "What is $m $x worth in $y?", "~What do I get for $m $x in $y?", m=m, x=x, y=y), {a: m, f: x, g: y}, {say("result", "converted"): z}, f"{m} {x} is {plain(z)} {y}."
    if k == 10:
        where = say("symbol", "ticker"); t = "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.choice([3, 4]))); p = round(r.uniform(3, 900), 2)
        return say("get_stock_price", "stock_price", "quote", "stock"), say("Get the price of a stock", "Stock quotes"), {where: S}, ask("What is the price of $t?", "How much is the $t stock?", "Stock price of $t?", "Quote for $t please.", "How is the $t stock doing?", "How is $t today?", "What does $t cost now?", "Where is $t trading?", "Price of $t?", "Check the price of $t.", "Tell me how $t stands.", "How much is $t?", "~How is $t doing?", t=t), {where: t}, {say("price", "last_price"): p}, f"{t} is at {plain(p)}."
    if k == 11:
        where = say("order_id", "id", "order"); i = v.ident(); st, d = say("shipped", "packed", "delayed", "delivered"), r.choice(WEEK)
        return say("get_order", "order_status", "track_order", "find_order", "lookup_order"), say("Get the status of an order", "Track a package"), {where: S}, ask("Where is my order $i?", "Track order $i.", "What is the status of order $i?", "Check order $i please.", "Has my order $i been shipped?", "Was order $i sent?", "Is order $i on its way?", "When will order $i arrive?", "Order $i: where is it?", "Please look up order $i.", "I ordered $i. Where is it?", "Has $i arrived?", "~Has order $i been sent?", i=i), {where: i}, {"status": st, say("day", "eta", "date"): d}, f"Order {i} is {st}, date: {d}."
    if k == 12:
        a, b, d = say("restaurant", "place", "name"), say("people", "guests", "party_size"), say("time", "at"); R, m, h = v.last() + say("", " Bar", " Kitchen", " Cafe"), r.randint(2, 12), v.clock(); code = v.ident()
        return say("book_table", "reserve_table", "reservation", "book_restaurant"), say("Reserve a table", "Book a restaurant table"), {a: S, b: I, d: S}, ask("Book a table for $m at $R at $h.", "Reserve a table at $R for $m people at $h.", "Table for $m, $R, $h please.", "We are $m people and want a table at $R at $h.", "We want to eat at $R, $m people, at $h.", "$m of us will eat at $R at $h. Book it.", "A table at $R for $m at $h, please.", "I want to have dinner at $R at $h with $m people.", "Please reserve for $m at $R, $h.", "At $h we want to come to $R. We are $m.", "Dinner at $R for $m, $h.", "~We are $m and want to eat at $R at $h.", m=m, R=R, h=h), {a: R, b: m, d: h}, {"status": say("confirmed", "ok"), "code": code}, f"Your table is booked, the code is {code}."
    if k == 13:
        a, b = say("room", "area"), say("color", "colour"); R, co = say("kitchen", "bedroom", "living room", "office", "garage", "hall", "bathroom", "garden"), r.choice(COLOR); schema, args = {a: S}, {a: R}
        q = ask("Turn on the light in the $R.", "Light on in the $R please.", "Switch on the $R light.", "It is too dark in the $R.", "Please switch on the light in the $R.", "I need light in the $R.", "Can you turn on the $R light?", "The $R is dark. Turn on the light.", "Make it bright in the $R.", "Lights on in the $R.", "~It is dark in the $R, switch on the light.", R=R)
        if r.random() < .6:
            schema[b] = S
            if r.random() < .6: args[b] = co; q = ask("Turn the $R light $o.", "Make the light in the $R $o.", "Set the light in the $R to $o.", "I want the $R light to be $o.", "I want the light in the $R in $o.", "Give me $o light in the $R.", "Please make the $R $o.", "$o light in the $R, please.", "Change the $R light to $o.", "Switch the light in the $R to $o.", "I would like $o light for the $R.", "~I want $o light in the $R.", R=R, o=co)
        return say("turn_on_light", "set_light", "light_on", "switch_light"), say("Control the lights", "Switch on a light"), schema, q, args, {"status": say("on", "ok", "done")}, f"The light in the {R} is on."
    if k == 14:
        where = say("sides", "max"); m = r.choice([4, 6, 8, 10, 12, 20, 100]); x = r.randint(1, m)
        return say("roll_dice", "dice", "random_number", "roll"), say("Roll a die", "Random number from 1 to a maximum"), {where: I}, ask("Roll a die with $m sides.", "Roll a $m sided die.", "Give me a random number up to $m.", "Throw a die with $m sides.", "Throw a $m sided die.", "A random number up to $m, please.", "Pick a number from 1 to $m.", "Roll one die of $m sides.", "Roll the dice, $m sides.", "~Throw a die of $m sides.", m=m), {where: m}, {say("result", "value"): x}, f"You got {x}."
    if k == 15:
        a, b = say("text", "input", "phrase"), say("language", "target", "to"); w, l = " ".join(v.words(r.choice([1, 2]))), say("French", "German", "Spanish", "Italian", "Polish", "Dutch", "Swedish"); x = v.invented().lower()
        return say("translate", "translate_text", "translator"), say("Translate text", "Translate a phrase into a language"), {a: S, b: S}, ask("Translate $w into $l.", "Translate to $l: $w", "How do you say $w in $l?", "What is the $l word for $w?", "What does $w mean in $l?", "Say $w in $l.", "$w in $l, please.", "Give me the $l for $w.", "Tell me how to say $w in $l.", "Put $w into $l.", "I need $w in $l.", "What do you call $w in $l?", "~What is $w in $l?", w=w, l=l), {a: w, b: l}, {say("translation", "text"): x}, f"In {l}: {x}."
    if k == 16:
        a, b, e = say("from", "origin", "departure"), say("to", "destination", "arrival"), say("day", "date"); d, w = v.city(), r.choice(WEEK); i, p = v.ident(), r.randint(40, 900)
        return say("find_flights", "search_flights", "flights", "flight_search"), say("Find flights", "Search flights between two cities"), {a: S, b: S, e: S}, ask("Find a flight from $c to $d on $w.", "I want to fly from $c to $d on $w.", "Flights to $d from $c on $w?", "On $w I need to get from $c to $d by plane.", "Which flights are there from $c to $d on $w?", "Are there flights from $c to $d on $w?", "Which planes go to $d from $c on $w?", "Show flights from $c to $d for $w.", "Fly me from $c to $d on $w.", "Look for a flight to $d on $w, leaving $c.", "$w, $c to $d: any flights?", "From $c to $d by plane on $w, please.", "~Which flights go from $c to $d on $w?", c=c, d=d, w=w), {a: c, b: d, e: w}, {"flight": i, "price": p}, f"Flight {i} goes from {c} to {d} for {p} dollars."
    if k == 17:
        a, b, e = say("title", "event", "name"), say("day", "date"), say("time", "hour", "start"); R, w, h = say("lunch with $n", "meeting with $n", "call $n", "dentist", "gym", "dinner with $n", "project review", "train to $c", n=v.first(), c=c), r.choice(WEEK), v.clock()
        return say("add_event", "create_event", "schedule", "add_to_calendar"), say("Add an event to the calendar", "Create a calendar entry"), {a: S, b: S, e: S}, ask("Add $R on $w at $h.", "Put $R in my calendar on $w at $h.", "Schedule $R for $w at $h.", "Note $R on $w at $h.", "Write down $R for $w at $h.", "$R, $w at $h. Put it in the calendar.", "Please add $R for $w, $h.", "Please note: $R, $w, $h.", "On $w at $h: $R. Add it.", "Remember $R on $w at $h.", "Enter $R for $w at $h.", "Plan $R for $w, $h.", "~Note $R for $w, $h.", R=R, w=w, h=h), {a: R, b: w, e: h}, {"status": say("created", "ok", "saved")}, f"I added {R} on {w} at {h}."
    return generic(v)


VERBS = ["get", "find", "create", "update", "delete", "list", "check", "start", "stop", "open", "close", "add", "remove", "show", "send", "count"]
KEYS = ["name", "id", "owner", "color", "size", "count", "level", "label", "city", "note", "status", "group", "key", "limit", "mode", "title", "priority", "zone", "path", "tag"]


def generic(v):
    """A tool with an invented name: what it is called and takes can only be read from its declaration."""
    r, say = v.r, v.say; verb, noun = r.choice(VERBS), v.word() if r.random() < .7 else v.invented(2).lower()
    if v.held: noun = v.invented(2).lower()                  # names never seen in training
    args, schema = {}, {}; made = {"owner": v.first, "name": v.first, "id": v.ident, "key": v.ident, "city": v.city, "zone": v.city, "note": lambda: " ".join(v.words(2)), "title": lambda: " ".join(v.words(2)), "status": lambda: say("open", "closed", "active"), "mode": lambda: say("fast", "slow", "auto"), "color": lambda: r.choice(COLOR), "path": lambda: "/" + "/".join(v.words(2))}
    for q in r.sample(KEYS, r.randint(1, 3)):
        if q in ("size", "count", "level", "limit", "priority"): args[q], schema[q] = r.randint(1, 500), I
        else: args[q], schema[q] = made.get(q, v.word)(), S
    status = say("ok", "done", "saved", "accepted"); said = " and ".join(f"{q} {args[q]}" for q in args)
    name = r.choice([f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{verb}{cap(noun)}"])
    q = v.ask("$V [a|the] $n with $s.", "Please $v the $n with $s.", "$V $n: $s.", "I want to $v a $n with $s.", "Can you $v the $n with $s?", "Could you $v [a|the] $n with $s?", "Would you $v the $n, $s?", "Please $v [a|the] $n, $s.", "$V [a|the] $n, $s.", "Now $v the $n with $s.", "Just $v [a|the] $n with $s.", "Hey, $v the $n: $s.", "You should $v the $n with $s.", "I need you to $v a $n, $s.", "Go $v a $n with $s.", "With $s, $v the $n.", "~Could you please $v [a|the] $n, $s?", "~Go and $v the $n with $s.", V=cap(verb), v=verb, n=noun, s=said)
    return name, say("$V a $n", "$V the $n", "Can $v a $n", V=cap(verb), v=verb, n=noun), schema, q, args, {"status": status}, f"Done: the status is {status}."


def call(name, args): return "<tool_call>\n" + to_json({"name": name, "arguments": args}) + "\n</tool_call>"


def calls(v, other=None):
    """A conversation with tools. `other` makes one that needs none."""
    r = v.r; k = r.randrange(26)
    while True:
        name, about, schema, q, args, res, answer = family(v, k)
        if name not in q.split(): break
    if r.random() < .25:          # the order in the declaration is free
        ks = list(schema); r.shuffle(ks); schema = {x: schema[x] for x in ks}; args = {x: args[x] for x in ks if x in args}
    tools = [tool(name, about, schema, list(args))]; others = []; kind = lambda n: n // 2 if n < 6 else min(n, 18); used, names = {kind(k)}, {name}
    for _ in range(r.choice([0, 0, 1, 1, 2, 3])):
        k2 = r.randrange(22); f = family(v, k2)
        if (kind(k2) in used and k2 < 18) or f[0] in names: continue
        used.add(kind(k2)); names.add(f[0]); tools.append(tool(f[0], f[1], f[2])); others.append(f)
    r.shuffle(tools); x = r.random()
    if x < .12 and other is not None: return dict(kind="tool_none", messages=other(v), tools=tools, want=None)
    ms = [("user", q), ("assistant", call(name, args)), ("tool", to_json(res)), ("assistant", answer)]
    if x > .8 and k in (0, 1, 6, 10, 11) and len(args) == 1 and not v.held:
        for _ in range(r.choice([1, 2])):
            f = family(v, k); value = list(f[4].values())[0]; key = list(args)[0]; asked = v.ask("And $x?", "What about $x?", "Now $x please.", "And in $x?" if k in (0, 1, 6) else "And $x?", "How about $x?", "And how is it for $x?", "The same for $x.", "~And how about $x?", x=value)
            said = f[6]; ms += [("user", asked), ("assistant", call(name, {key: value})), ("tool", to_json(f[5])), ("assistant", said)]
    elif x < .22 and k in (0, 1, 6) and len(args) == 1:
        c2, key = v.city(), list(args)[0]; w = "weather" if k < 2 else "time"
        ms = [("user", v.ask("What is the $w in $a and in $b?", "$W in $a and $b?", "Compare the $w in $a and $b.", "I need the $w in $a and in $b.", "Tell me the $w for $a and $b.", "Give me the $w of $a and $b.", "$a and $b: what is the $w?", "Both $a and $b: the $w, please.", "~I need the $w for $a and $b.", w=w, W=cap(w), a=args[key], b=c2)), ("assistant", call(name, args) + "\n" + call(name, {key: c2}))]
    elif x > .35 and not v.held:           # the other tools get their turn: more calls for one list of tools
        for f in others: ms += [("user", f[3]), ("assistant", call(f[0], f[4]))] + ([("tool", to_json(f[5])), ("assistant", f[6])] if r.random() < .3 else [])
    return dict(kind="tool_new" if k >= 18 else "tool", messages=ms, tools=tools, want=args, name=name)
