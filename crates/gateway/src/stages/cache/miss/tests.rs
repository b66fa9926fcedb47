//! The places of misses in conversations and prompts of each kind.

use headrace_domain::{Message, Role};

use super::*;

fn conversation(texts: &[(Role, &str)]) -> Conversation {
    let messages = texts.iter().map(|(role, text)| Message::text(*role, *text)).collect();
    Conversation { messages, tools: Vec::new(), ..Conversation::default() }
}

fn in_message(index: usize, character: u32) -> MissPosition {
    MissPosition::In(PromptPart::Message(index), character)
}

fn before(message: usize) -> MissPosition {
    MissPosition::Before(message)
}

fn at(part: PromptPart, range: Range<usize>) -> PartRange {
    PartRange { part, range }
}

#[test]
fn a_byte_of_a_rendered_conversation_is_found_in_its_message() {
    use Role::{Assistant, System, User};
    let texts = [(System, "  be kind "), (User, "héllo there"), (Assistant, "hi"), (User, "héllo again")];
    let text = "<s>be kind</s><u>héllo there</u><a>hi</a><u>héllo again</u><a>";
    let byte = |needle: &str| text.find(needle).unwrap();
    let mut places = Vec::new();
    for (index, shown) in ["be kind", "héllo there", "hi", "héllo again"].iter().enumerate() {
        let start = byte(&format!(">{shown}<")) + 1;
        places.push(at(PromptPart::Message(index), start..start + shown.len()));
    }
    for (offset, expected) in [
        (0, before(0)),
        (byte("be kind"), in_message(0, 2)),
        (byte("kind"), in_message(0, 5)),
        (byte("</s>"), before(1)),
        (byte("there"), in_message(1, 6)),
        (byte("hi</a>"), in_message(2, 0)),
        (byte("again"), in_message(3, 6)),
        (text.len() - 1, before(4)),
    ] {
        for places in [&[][..], &places[..2], &places] {
            let found = in_conversation(&conversation(&texts), places.to_vec(), text, offset);
            assert_eq!(found, expected, "byte {offset}, {places:?}");
        }
    }
}

#[test]
fn words_of_the_template_are_not_taken_for_messages_with_places() {
    let text = "<user>user</user>";
    let user = conversation(&[(Role::User, "user")]);
    let place = vec![at(PromptPart::Message(0), 6..10)];
    assert_eq!(in_conversation(&user, place.clone(), text, 4), before(0));
    assert_eq!(in_conversation(&user, place, text, 7), in_message(0, 1));
    // A template that trims a message on one side only.
    let trimmed = conversation(&[(Role::User, " a ")]);
    let place = vec![at(PromptPart::Message(0), 1..3)];
    assert_eq!(in_conversation(&trimmed, place, "< a>", 2), in_message(0, 1));
}

#[test]
fn messages_that_are_not_there_are_not_looked_for_without_end() {
    let mut texts = vec![(Role::User, "x"); VAIN_SEARCHES];
    texts.push((Role::User, "there"));
    assert_eq!(in_conversation(&conversation(&texts), Vec::new(), "<there>", 2), before(17));
    assert_eq!(in_conversation(&conversation(&texts[1..]), Vec::new(), "<there>", 2), in_message(15, 1));
}

#[test]
fn tools_are_told_from_the_words_around_them() {
    let text = "<s>be kind\n# Tools\n{t0}\n{t1}\n</tools></s><u>hi</u><a>";
    let byte = |needle: &str| text.find(needle).unwrap();
    let of = |part, shown: &str| at(part, byte(shown)..byte(shown) + shown.len());
    let places = vec![
        of(PromptPart::Message(0), "be kind"),
        of(PromptPart::Tool(0), "{t0}"),
        of(PromptPart::Tool(1), "{t1}"),
        of(PromptPart::Message(1), "hi"),
    ];
    let talk = conversation(&[(Role::System, "be kind"), (Role::User, "hi")]);
    let tool = |index| MissPosition::In(PromptPart::Tool(index), 0);
    for (offset, expected) in [
        (byte("kind"), in_message(0, 3)),
        // The most similar prompt has no tools.
        (byte("\n# Tools"), MissPosition::Tools),
        (byte("Tools"), MissPosition::Tools),
        (byte("t0"), tool(0)),
        (byte("\n{t1}"), tool(1)),
        (byte("t1"), tool(1)),
        // The most similar prompt has one more tool.
        (byte("\n</tools>"), MissPosition::Tools),
        (byte("</tools>"), MissPosition::Tools),
        (byte("</s>"), before(1)),
        (byte("hi"), in_message(1, 0)),
        (byte("<a>"), before(2)),
    ] {
        assert_eq!(in_conversation(&talk, places.clone(), text, offset), expected, "byte {offset}");
    }
}
