//! Tests that every recogniser compiles. Must not know texts.

use super::*;

#[test]
fn each_kind_has_a_pattern_that_compiles() {
    for entity in PiiEntity::ALL {
        assert!(patterns_of(&[entity]).count() > 0, "{entity:?}");
    }
    for pattern in &PATTERNS {
        regex::Regex::new(pattern.pattern).unwrap();
    }
}
