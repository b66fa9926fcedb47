//! Tables of texts and verdicts. Also checks that hostile patterns and texts cost no more than their length.

use proptest::prelude::*;

use super::*;
use crate::{AppliesTo, JudgeMode, Phrases, config::limits as bounds};
use crate::{ContentLabel, LabelThreshold};

fn words(name: &str, words: &[&str], action: Action) -> RuleConfig {
    RuleConfig {
        name: name.to_owned(),
        kind: RuleKind::Words,
        words: words.iter().map(|&word| word.to_owned()).collect(),
        whole_word: false,
        pattern: None,
        action,
        window: None,
        entities: Vec::new(),
        labels: Vec::new(),
        threshold: None,
        judge: None,
        mode: JudgeMode::Sync,
        replacement: None,
        restore: false,
        applies_to: AppliesTo::INPUT,
        projects: Vec::new(),
        dry_run: false,
        message: None,
    }
}

fn whole(name: &str, list: &[&str], action: Action) -> RuleConfig {
    RuleConfig { whole_word: true, ..words(name, list, action) }
}

fn regex(name: &str, pattern: &str, action: Action) -> RuleConfig {
    RuleConfig { kind: RuleKind::Regex, pattern: Some(pattern.to_owned()), ..words(name, &[], action) }
}

/// The verdict in short form: `-`, `flag NAME` or `block NAME`.
fn short(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Clean => "-".to_owned(),
        Verdict::Flagged { rule } => format!("flag {rule}"),
        Verdict::Blocked { rule, .. } => format!("block {rule}"),
    }
}

#[test]
fn texts_and_verdicts() {
    use Action::{Block, Flag};
    let rules = Rules::compile(&[
        words("soft", &["grey"], Flag),
        words("hard", &["black market", "Ärger", "ΟΔΟΣ"], Block),
        whole("alone", &["ass", "c++"], Block),
        regex("card", r"\b(?:\d[ -]?){13,16}\b", Block),
        regex("mail", r"(?i)[a-z0-9.]+@example\.com", Flag),
        words("also-soft", &["grey", "gray"], Flag),
        whole("cyrillic", &["тени", "сор"], Block),
    ])
    .unwrap();
    let rows = [
        ("в тени", "block cyrillic"),
        ("в тeни", "block cyrillic"),
        ("в ТЕHИ", "block cyrillic"),
        ("сор", "block cyrillic"),
        ("a cop in тир", "-"),
        ("", "-"),
        ("nothing to see", "-"),
        ("a grey day", "flag soft"),
        ("a GReY day", "flag soft"),
        ("a gray day", "flag also-soft"),
        ("greyhound", "flag soft"),
        ("the Black Market", "block hard"),
        ("black  market", "block hard"),
        ("black\n\u{a0}\tmarket", "block hard"),
        ("bl\u{200d}ack\u{200b} mar\u{ad}ket", "block hard"),
        ("ｂｌａｃｋ\u{3000}ｍａｒｋｅｔ", "block hard"),
        ("bláck markét", "block hard"),
        ("blаck market", "block hard"),
        ("ВLАСК МАRКЕТ", "block hard"),
        ("bl\u{3b1}c\u{3ba} m\u{430}rk\u{435}t", "block hard"),
        ("ʙʟᴀᴄᴋ ᴍᴀʀᴋᴇᴛ", "block hard"),
        ("ꓐꓡꓮꓚꓗ ꓟꓮꓣꓗꓰꓔ", "block hard"),
        ("bl\u{200b}а\u{301}ck\u{3000}mаrket", "block hard"),
        ("black\u{2060}\u{2003}m\u{34f}arket", "block hard"),
        ("an аss.", "block alone"),
        ("clаss", "-"),
        ("οδoς", "block hard"),
        ("oδoc", "-"),
        ("чёрный рынок", "-"),
        ("Jоe@exаmple.com", "flag mail"),
        ("black-market", "-"),
        ("grey black market", "block hard"),
        ("black market and ass", "block hard"),
        ("ass and black market", "block hard"),
        ("viel ÄRGER", "block hard"),
        ("viel ärger", "block hard"),
        ("οδος", "block hard"),
        ("viel A\u{308}rger", "block hard"),
        ("viel Arger", "block hard"),
        ("class assess", "-"),
        ("an ass.", "block alone"),
        ("ass", "block alone"),
        ("éass", "-"),
        ("e\u{301}ass", "-"),
        ("ass\u{301}", "block alone"),
        ("_ass_", "block alone"),
        ("I write C++, mostly", "block alone"),
        ("C++11", "-"),
        ("4111 1111 1111 1111", "block card"),
        ("４１１１\u{2003}1111 11\u{200b}11 1111", "block card"),
        ("call 555-1234", "-"),
        ("Joe@Example.com", "flag mail"),
        ("grey Joe@Example.com", "flag soft"),
        ("\0\u{feff}grey\u{202e}", "flag soft"),
        ("𝔤𝔯𝔢𝔶", "flag soft"),
    ];
    for (text, expected) in rows {
        assert_eq!(short(&rules.judge(text)), expected, "{text:?}");
    }
    let texts = ["a gray day", "a grey day", "an ass", "the black market"];
    assert_eq!(
        short(&rules.judge_all(&mut texts.into_iter())),
        "block alone",
        "texts in order, gravest first"
    );
    assert_eq!(short(&rules.judge_all(&mut texts.into_iter().take(2))), "flag also-soft");
    assert_eq!(rules.judge_all(&mut std::iter::empty()), Verdict::Clean);
}

/// The most severe verdict on phrases that cross the texts of a sequence.
fn between(rules: &Rules, texts: &[&str]) -> String {
    let mut phrases = Phrases::of(rules);
    short(&texts.iter().fold(Verdict::Clean, |gravest, text| gravest.graver(phrases.next(text))))
}

#[test]
fn a_phrase_is_found_where_texts_meet() {
    use Action::{Block, Flag};
    let rules = Rules::compile(&[
        words("hard", &["black market", "a b c d e"], Block),
        whole("whole", &["red tape", "в тени"], Block),
        words("soft", &["grey", "grey zone"], Flag),
    ])
    .unwrap();
    let long = "x".repeat(10_000);
    let unseen = "\u{200b}".repeat(10_000);
    let rows: [(&[&str], &str); 37] = [
        (&[], "-"),
        (&["black"], "-"),
        (&["black market"], "-"),
        (&["black", "market"], "block hard"),
        (&["the BLACK", "Market of"], "block hard"),
        (&["black \n", "\n market"], "block hard"),
        (&["black", "", "market"], "block hard"),
        (&["black", "\u{200b}", "market"], "block hard"),
        (&["bla", "ck market"], "block hard"),
        (&["bla", "ck mar", "ket"], "block hard"),
        (&["bla ", " ck", "market"], "block hard"),
        (&["black m", "arket"], "block hard"),
        (&["b", "l", "a", "c", "k", "m", "a", "r", "k", "e", "t"], "block hard"),
        (&["bl", "ackmarket"], "-"),
        (&["bl", "ack mark et"], "-"),
        (&["b lack", "market"], "-"),
        (&["blac", "ok", "k market"], "-"),
        (&["а b", "c d", "e"], "block hard"),
        (&["bl\u{200b}а", "ck mаrkеt"], "block hard"),
        (&["r", "ed tape"], "block whole"),
        (&["sac", "red tape"], "-"),
        (&["sacr", "ed tape"], "-"),
        (&["red ta", "pes"], "-"),
        (&["black", "ok", "market"], "-"),
        (&["market", "black"], "-"),
        (&["bl\u{200b}аck", "mаrkеt"], "block hard"),
        (&["black", "mаrkеt"], "block hard"),
        (&["a", "b", "c", "d", "e"], "block hard"),
        (&["a b", "c", "d e"], "block hard"),
        (&["a b", "c", "d"], "-"),
        (&[&long, "black", &long], "-"),
        (&["grey", "day"], "-"),
        (&["grey", "zone"], "flag soft"),
        (&["red", "tape"], "block whole"),
        (&["red", "tapes"], "-"),
        (&["sacred", "tape"], "-"),
        (&["в", "тeни"], "block whole"),
    ];
    for (texts, expected) in rows {
        assert_eq!(between(&rules, texts), expected, "{texts:.100?}");
    }
    let padded = [format!("{long} black{unseen}"), format!("{unseen}market {long}")];
    assert_eq!(between(&rules, &[&padded[0], &padded[1]]), "block hard");
    let far = [format!("black{long}"), format!("{long}market")];
    assert_eq!(between(&rules, &[&far[0], &far[1]]), "-");
    let without = Rules::compile(&[words("hard", &["black", "market"], Block)]).unwrap();
    assert_eq!(without.longest_phrase_chars(), 0);
    assert_eq!(between(&without, &["bla", "ck"]), "-");
}

#[test]
fn an_empty_list_judges_everything_clean() {
    for rules in [Rules::default(), Rules::compile(&[]).unwrap()] {
        assert!(rules.is_empty());
        assert_eq!(rules.len(), 0);
        assert_eq!(rules.judge("anything"), Verdict::Clean);
    }
}

#[test]
fn a_verdict_never_repeats_the_text() {
    let own =
        RuleConfig { message: Some("Ask legal.".to_owned()), ..words("b", &["classified"], Action::Block) };
    let rules = Rules::compile(&[words("a", &["secret-canary"], Action::Block), own]).unwrap();
    let verdict = rules.judge("the secret-canary sings");
    assert!(!format!("{verdict:?}").contains("canary"));
    let Verdict::Blocked { message, .. } = verdict else { panic!("it blocks") };
    assert_eq!(&*message, "The request matches the content rule `a`.");
    let Verdict::Blocked { message, .. } = rules.judge("classified") else { panic!("it blocks") };
    assert_eq!(&*message, "Ask legal.");
}

#[test]
fn what_is_wrong_is_told_with_the_rules_name() {
    use Action::Block;
    let long = "x".repeat(5_000);
    let many: Vec<String> = (0..bounds::MAX_WORDS + 1).map(|n| n.to_string()).collect();
    let rows: Vec<(RuleConfig, &str)> = vec![
        (words("", &["a"], Block), "rule `number 1`: `name` must"),
        (words("a b", &["a"], Block), "rule `number 1`: `name` must"),
        (words("w", &[], Block), "rule `w`: `words` must hold 1 to 10000 words, and holds 0"),
        (words("w", &[""], Block), "rule `w`: `words` holds a word that is blank"),
        (words("w", &[" \t"], Block), "rule `w`: `words` holds a word that is blank"),
        (words("w", &[&long], Block), "rule `w`: `words` holds a word that is blank or longer"),
        (RuleConfig { words: many, ..words("w", &[], Block) }, "rule `w`: `words` must hold"),
        (
            RuleConfig { pattern: Some("a".to_owned()), ..words("w", &["a"], Block) },
            "rule `w`: `pattern` belongs",
        ),
        (
            RuleConfig { threshold: Some(LabelThreshold::DEFAULT), ..words("w", &["a"], Block) },
            "rule `w`: `threshold` belongs",
        ),
        (
            RuleConfig { labels: vec![ContentLabel::Threat], ..words("w", &["a"], Block) },
            "rule `w`: `labels` belongs",
        ),
        (
            RuleConfig {
                kind: RuleKind::Classifier,
                applies_to: AppliesTo::OUTPUT,
                ..words("c", &[], Action::Redact)
            },
            "rule `c`: `action` `redact` would",
        ),
        (RuleConfig { kind: RuleKind::Classifier, ..words("c", &["a"], Block) }, "rule `c`: `words` belongs"),
        (RuleConfig { pattern: None, ..regex("r", "", Block) }, "rule `r`: `pattern` is missing"),
        (regex("r", "", Block), "rule `r`: `pattern` is missing"),
        (regex("r", "(", Block), "rule `r`: `pattern` does not compile"),
        (regex("r", r"(a)\1", Block), "rule `r`: `pattern` does not compile"),
        (regex("r", &long, Block), "rule `r`: `pattern` has 5000 bytes"),
        (regex("r", r"(?:\w{1000}){1000}", Block), "rule `r`: `pattern` compiles to more than"),
        (
            regex("r", &format!("{}a{}", "(".repeat(90), ")".repeat(90)), Block),
            "rule `r`: `pattern` does not",
        ),
        (RuleConfig { whole_word: true, ..regex("r", "a", Block) }, "rule `r`: `whole_word` belongs"),
        (
            RuleConfig { message: Some(String::new()), ..words("w", &["a"], Block) },
            "rule `w`: `message` must",
        ),
    ];
    for (config, expected) in rows {
        let error = Rules::compile(std::slice::from_ref(&config)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let twice = [words("w", &["a"], Block), words("w", &["b"], Block)];
    assert!(Rules::compile(&twice).unwrap_err().to_string().contains("`name` is used twice"));
    let all_at_once = [regex("a", "(", Block), regex("b", ")", Block)];
    assert_eq!(Rules::compile(&all_at_once).unwrap_err().0.len(), 2);
    let crowd: Vec<_> = (0..=bounds::MAX_RULES).map(|n| words(&format!("r{n}"), &["a"], Block)).collect();
    assert!(Rules::compile(&crowd).is_err());
}

#[test]
fn hostile_patterns_on_hostile_texts_come_back() {
    // A backtracking matcher would not finish these within the age of the universe.
    let text = "a".repeat(200_000) + "!";
    for pattern in ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){12}$", "([a-z]+)*$"] {
        let rules = Rules::compile(&[regex("r", pattern, Action::Block)]).unwrap();
        assert_eq!(rules.judge(&text).is_blocked(), pattern.contains('*') && !pattern.starts_with("(.*a)"));
    }
    let nested: Vec<String> = (1..=bounds::MAX_WORD_BYTES).map(|n| "a".repeat(n)).collect();
    let nested = RuleConfig { words: nested, whole_word: true, ..words("w", &[], Action::Block) };
    assert_eq!(Rules::compile(&[nested]).unwrap().judge(&"a".repeat(20_000)), Verdict::Clean);
}

#[test]
fn rules_are_read_from_configuration() {
    let read = |json: &str| serde_json::from_str::<Vec<RuleConfig>>(json);
    let rules = read(
        r#"[{"name":"a","kind":"words","words":["x"],"whole_word":true,"action":"flag","applies_to":"input"},
            {"name":"b","kind":"regex","pattern":"y+","action":"block","message":"no"},
            {"name":"c","kind":"pii","entities":["email"],"action":"redact","applies_to":["answer","tool_calls"]}]"#,
    )
    .unwrap();
    assert_eq!(read(&serde_json::to_string(&rules).unwrap()).unwrap(), rules);
    assert_eq!(Rules::compile(&rules).unwrap().len(), 3);
    for bad in [
        r#"[{"name":"a","kind":"words","words":["x"],"action":"flag","applies_to":"sideways"}]"#,
        r#"[{"name":"a","kind":"words","words":["x"],"action":"flag","applies_to":[]}]"#,
        r#"[{"name":"a","kind":"words","words":["x"],"action":"allow"}]"#,
        r#"[{"name":"a","kind":"words","words":["x"],"action":"flag","colour":1}]"#,
        r#"[{"name":"a","words":["x"],"action":"flag"}]"#,
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

proptest! {
    /// Words are found exactly where a plain search in the normalised text finds them.
    #[test]
    fn words_are_found_as_by_plain_search(
        list in proptest::collection::vec("[a-cA-Cäß ]{1,3}", 1..6),
        text in "[a-cA-CäÄß ]{0,24}",
    ) {
        prop_assume!(list.iter().all(|word| !word.trim().is_empty()));
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        let fold = |text: &str| {
            let plain: String = text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
            let spaced = plain.replace('ä', "a").split(' ').map(str::to_owned).collect::<Vec<_>>();
            let mut once = spaced.join(" ");
            while once.contains("  ") {
                once = once.replace("  ", " ");
            }
            once
        };
        let inside = list.iter().any(|word| fold(&text).contains(fold(word).trim()));
        let rules = Rules::compile(&[words("w", &list, Action::Block)]).unwrap();
        prop_assert_eq!(rules.judge(&text).is_blocked(), inside);
    }

    /// A phrase that is split at any of its spaces is still found.
    #[test]
    fn a_split_phrase_is_found(
        parts in proptest::collection::vec("[a-zäжλ]{1,9}", 2..7),
        cuts in any::<u8>(),
        (before, after) in ("[ -~]{0,40}", "[ -~]{0,40}"),
    ) {
        let rules = Rules::compile(&[words("w", &[&parts.join(" ")], Action::Block)]).unwrap();
        let mut texts = vec![format!("{before} ")];
        for (at, part) in parts.iter().enumerate() {
            let text = texts.last_mut().unwrap();
            text.push_str(part);
            if at + 1 < parts.len() {
                if cuts & (1 << at) == 0 { text.push(' ') } else { texts.push(String::new()) }
            }
        }
        texts.last_mut().unwrap().push_str(&after);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let whole = rules.judge_all(&mut texts.iter().copied()).is_blocked();
        prop_assert!(whole || between(&rules, &texts) == "block w", "{texts:?}");
    }

    /// Any list gives a verdict on any text.
    #[test]
    fn any_text_is_judged(text in any::<String>()) {
        let rules = Rules::compile(&[
            whole("w", &["a", "é", "\u{130}"], Action::Block),
            regex("r", r"\p{Greek}+\b", Action::Flag),
        ]).unwrap();
        let _verdict = rules.judge(&text);
    }
}

#[test]
fn the_classifier_judges_each_passage_of_a_text() {
    let of = |name: &str, label, action| RuleConfig {
        kind: RuleKind::Classifier,
        labels: vec![label],
        ..words(name, &[], action)
    };
    let rules = [
        of("threats", ContentLabel::Threat, Action::Block),
        of("insults", ContentLabel::Insult, Action::Flag),
    ];
    let rules = Rules::compile(&rules).unwrap();
    let (insult, threat) = ("You are a pathetic loser.", "I will kill you and your family tonight.");
    let harmless = "Please summarise the quarterly report. The kettle is broken, so we made no tea.";
    let verdict = |text: String| {
        let verdict = rules.judge(&text);
        (verdict.is_blocked(), verdict.rule().map(str::to_owned))
    };
    assert_eq!(verdict(harmless.repeat(20)), (false, None));
    assert_eq!(verdict(format!("{harmless} {insult} {harmless}")), (false, Some("insults".to_owned())));
    assert_eq!(verdict(format!("{insult} {harmless} {threat}")), (true, Some("threats".to_owned())));
    // Accents, capitals, invisible characters and look-alike letters change nothing.
    for masked in [
        "I WILL KILL YOU AND YOUR FAMILY",
        "I w\u{ed}ll k\u{200b}ill you and your family",
        "I will k\u{456}ll y\u{43e}u and your family",
    ] {
        assert_eq!(verdict(masked.to_owned()), (true, Some("threats".to_owned())), "{masked}");
    }
}
