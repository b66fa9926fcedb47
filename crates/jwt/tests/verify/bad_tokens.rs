//! Good and bad tokens, as tables.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_identity::MAX_TOKEN_BYTES;
use headrace_jwt::TokenRefusal;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::provider::{START_SECONDS, SigningKey, World, claims, claims_with, issuer, rule};

const ALGORITHMS: [&str; 10] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"];

#[tokio::test]
async fn every_asymmetric_algorithm_is_accepted_with_its_own_key() {
    let keys: Vec<SigningKey> = ["RS256", "ES256", "ES384", "ES512", "EdDSA"]
        .iter()
        .map(|name| SigningKey::new(name, name))
        .collect();
    let world = World::of(issuer(vec![rule("lab")]), &keys.iter().collect::<Vec<_>>());
    for algorithm in ALGORITHMS {
        for key in &keys {
            let fits = key.id == algorithm || (key.id == "RS256" && ["R", "P"].contains(&&algorithm[..1]));
            let answer = world.sign_in(&key.token(algorithm, &claims())).await;
            match fits {
                true => assert_eq!(answer.unwrap().project.as_str(), "lab", "{algorithm}"),
                false => {
                    assert_eq!(answer.unwrap_err(), TokenRefusal::OtherAlgorithm, "{algorithm} {}", key.id)
                }
            }
        }
    }
}

#[tokio::test]
async fn good_tokens() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    let payload = claims().to_string();
    for header in [
        json!({"alg": "ES256", "kid": "k"}),
        json!({"alg": "ES256", "kid": "k", "typ": "at+jwt"}),
        json!({"alg": "ES256", "kid": "k", "typ": "application/AT+JWT"}),
        json!({"alg": "ES256", "kid": "k", "typ": "jwt"}),
        // A provider with one key need not name it.
        json!({"alg": "ES256", "typ": "JWT"}),
    ] {
        let answer = world.sign_in(&key.token_with("ES256", &header.to_string(), &payload)).await;
        assert!(answer.is_ok(), "{header}: {answer:?}");
    }
    for (claim, value) in [
        ("aud", json!(["else", "headrace"])),
        ("exp", json!(START_SECONDS - 59)),
        ("exp", json!(START_SECONDS as f64 + 0.5)),
        ("nbf", json!(START_SECONDS + 60)),
        ("iat", json!(START_SECONDS + 60)),
        ("iat", Value::Null),
        ("nested", json!({"a": {"b": [1, {"c": null}]}})),
    ] {
        let answer = world.sign_in(&key.token("ES256", &claims_with(claim, value.clone()))).await;
        assert!(answer.is_ok(), "{claim} {value}: {answer:?}");
    }
}

#[tokio::test]
async fn bad_headers() {
    let (key, ed) = (SigningKey::new("k", "RS256"), SigningKey::new("ed", "EdDSA"));
    let stranger = SigningKey::new("k", "RS256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key, &ed]);
    let good = claims().to_string();
    let signed = |header: Value| key.token_with("RS256", &header.to_string(), &good);
    let hmac_by_public_key = {
        // The attack of RFC 8725, 2.1: a public key as the secret of an HMAC.
        let header = json!({"alg": "HS256", "kid": "k"}).to_string();
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(&good));
        let secret =
            aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key.jwk().to_string().as_bytes());
        let tag = aws_lc_rs::hmac::sign(&secret, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag.as_ref()))
    };
    let unsigned = |alg: &str| {
        let header = json!({"alg": alg, "kid": "k"}).to_string();
        format!("{}.{}.", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(&good))
    };
    let malformed = |what| TokenRefusal::Malformed { what };
    let bad_header = malformed("its header is no base64url of one JSON object");
    let rows: Vec<(&str, String, TokenRefusal)> = vec![
        ("HMAC", hmac_by_public_key, TokenRefusal::Algorithm),
        ("none", unsigned("none"), TokenRefusal::Algorithm),
        ("None", unsigned("nOnE"), TokenRefusal::Algorithm),
        ("no signature", unsigned("RS256"), TokenRefusal::Signature),
        ("no alg", signed(json!({"kid": "k"})), TokenRefusal::Algorithm),
        ("alg is a list", signed(json!({"alg": ["RS256"], "kid": "k"})), TokenRefusal::Algorithm),
        ("lower case", signed(json!({"alg": "rs256", "kid": "k"})), TokenRefusal::Algorithm),
        ("another family", signed(json!({"alg": "PS256", "kid": "k"})), TokenRefusal::Signature),
        ("another hash", signed(json!({"alg": "RS384", "kid": "k"})), TokenRefusal::Signature),
        ("another type", signed(json!({"alg": "ES256", "kid": "k"})), TokenRefusal::OtherAlgorithm),
        ("another key", signed(json!({"alg": "EdDSA", "kid": "ed"})), TokenRefusal::Signature),
        ("unknown key", signed(json!({"alg": "RS256", "kid": "l"})), TokenRefusal::UnknownKey),
        ("stranger", stranger.token("RS256", &claims()), TokenRefusal::Signature),
        (
            "embedded jwk",
            stranger.token_with(
                "RS256",
                &json!({"alg": "RS256", "kid": "k", "jwk": stranger.jwk()}).to_string(),
                &good,
            ),
            TokenRefusal::Signature,
        ),
        (
            "jku",
            stranger.token_with(
                "RS256",
                &json!({"alg": "RS256", "kid": "m", "jku": "https://evil.example/jwks", "x5u": "https://evil.example/"})
                    .to_string(),
                &good,
            ),
            TokenRefusal::UnknownKey,
        ),
        ("crit", signed(json!({"alg": "RS256", "kid": "k", "crit": ["b64"], "b64": false})), TokenRefusal::CriticalExtension),
        ("typ", signed(json!({"alg": "RS256", "kid": "k", "typ": "logout+jwt"})), TokenRefusal::Type),
        ("typ of a proof", signed(json!({"alg": "RS256", "kid": "k", "typ": "dpop+jwt"})), TokenRefusal::Type),
        ("typ is a number", signed(json!({"alg": "RS256", "kid": "k", "typ": 1})), TokenRefusal::Type),
        ("kid is a number", signed(json!({"alg": "RS256", "kid": 1})), malformed("its `kid` is no text")),
        (
            "alg twice",
            key.token_with("RS256", r#"{"alg":"none","alg":"RS256","kid":"k"}"#, &good),
            bad_header.clone(),
        ),
        ("header is a list", key.token_with("RS256", "[]", &good), bad_header.clone()),
        ("no dots", "abc".to_owned(), malformed("it has no dots")),
        ("one dot", "a.b".to_owned(), malformed("it has one dot instead of two")),
        (
            "encrypted",
            "a.b.c.d.e".to_owned(),
            malformed("it has more than three parts; encrypted tokens are not accepted"),
        ),
        ("no header", format!(".{}.c", URL_SAFE_NO_PAD.encode(&good)), bad_header.clone()),
        ("padding", key.token("RS256", &claims()).replacen('.', "=.", 1), bad_header),
    ];
    for (what, token, expected) in rows {
        assert_eq!(world.sign_in(&token).await.unwrap_err(), expected, "{what}");
    }
    let fetched = world.documents.fetched.lock().clone();
    assert!(fetched.iter().all(|url| !url.contains("evil")), "keys come from the issuer only: {fetched:?}");
}

#[tokio::test]
async fn bad_claims() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    let number = |claim| TokenRefusal::Claim { claim, must_be: "a number of seconds since 1970" };
    let subject =
        TokenRefusal::Claim { claim: "sub", must_be: "a text of 1 to 255 bytes without control characters" };
    let rows = [
        ("iss", json!("https://login.example.com/"), TokenRefusal::UnknownIssuer),
        ("iss", json!("https://LOGIN.example.com"), TokenRefusal::UnknownIssuer),
        ("iss", json!(["https://login.example.com"]), TokenRefusal::UnknownIssuer),
        ("iss", Value::Null, TokenRefusal::UnknownIssuer),
        ("aud", json!("other"), TokenRefusal::Audience),
        ("aud", json!("headrace2"), TokenRefusal::Audience),
        ("aud", json!(["a", "b"]), TokenRefusal::Audience),
        ("aud", json!([]), TokenRefusal::Audience),
        ("aud", json!({"headrace": true}), TokenRefusal::Audience),
        ("aud", Value::Null, TokenRefusal::Audience),
        ("exp", json!(START_SECONDS - 60), TokenRefusal::Expired),
        ("exp", json!(0), TokenRefusal::Expired),
        ("exp", json!(-1), number("exp")),
        ("exp", json!("1800000000"), number("exp")),
        ("exp", json!(1e300), number("exp")),
        ("exp", Value::Null, TokenRefusal::Claim { claim: "exp", must_be: "present" }),
        ("nbf", json!(START_SECONDS + 61), TokenRefusal::NotYetValid { claim: "nbf" }),
        ("nbf", json!("soon"), number("nbf")),
        ("iat", json!(START_SECONDS + 61), TokenRefusal::NotYetValid { claim: "iat" }),
        ("sub", Value::Null, subject.clone()),
        ("sub", json!(""), subject.clone()),
        ("sub", json!("a\nb"), subject.clone()),
        ("sub", json!("a".repeat(256)), subject.clone()),
        ("sub", json!(7), subject),
        ("cnf", json!({"jkt": "x"}), TokenRefusal::Bound),
    ];
    for (claim, value, expected) in rows {
        let token = key.token("ES256", &claims_with(claim, value.clone()));
        assert_eq!(world.sign_in(&token).await.unwrap_err(), expected, "{claim} {value}");
    }
    let header = json!({"alg": "ES256", "kid": "k"}).to_string();
    let good = claims().to_string();
    let twice = good.replacen('{', "{\"iss\":\"https://evil.example\",", 1);
    let what = "its payload is no base64url of one JSON object";
    for payload in
        [twice.as_str(), "{}x", "[]", "\u{1}", &format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500))]
    {
        let refusal = world.sign_in(&key.token_with("ES256", &header, payload)).await.unwrap_err();
        assert_eq!(refusal, TokenRefusal::Malformed { what }, "{payload}");
    }
}

#[tokio::test]
async fn a_token_has_at_most_8_kib() {
    let key = SigningKey::new("k", "ES256");
    let world = World::of(issuer(vec![rule("lab")]), &[&key]);
    let of_length = |wanted: usize| {
        (0..wanted).rev().find_map(|fill| {
            let token = key.token("ES256", &claims_with("fill", json!("x".repeat(fill))));
            (token.len() <= wanted).then_some(token)
        })
    };
    let longest = of_length(MAX_TOKEN_BYTES).unwrap();
    assert!(longest.len() > MAX_TOKEN_BYTES - 4);
    assert!(world.sign_in(&longest).await.is_ok());
    let token = key.token("ES256", &claims_with("fill", json!("x".repeat(8 << 10))));
    assert_eq!(world.sign_in(&token).await.unwrap_err(), TokenRefusal::TooLong { bytes: token.len() });
}

#[tokio::test]
async fn the_audience_may_be_in_other_claims_if_the_operator_allows_it() {
    let key = SigningKey::new("k", "ES256");
    let mut without_aud = claims_with("aud", Value::Null);
    without_aud["client_id"] = json!("headrace");
    let token = key.token("ES256", &without_aud);
    let config = issuer(vec![rule("lab")]);
    let strict = World::of(config.clone(), &[&key]);
    assert_eq!(strict.sign_in(&token).await.unwrap_err(), TokenRefusal::Audience);
    let claims = ["aud", "client_id"].map(str::to_owned).to_vec();
    let open = World::of(headrace_jwt::IssuerConfig { audience_claims: claims, ..config }, &[&key]);
    assert!(open.sign_in(&token).await.is_ok());
}

#[test]
fn refusals_name_no_values() {
    let key = SigningKey::new("k", "ES256");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut none = rule("lab");
    none.when
        .push(headrace_jwt::ClaimCondition { claim: "groups".to_owned(), any_of: vec!["admins".to_owned()] });
    let world = World::of(issuer(vec![none]), &[&key]);
    let refusal = runtime.block_on(world.sign_in(&key.token("ES256", &claims()))).unwrap_err();
    let text = refusal.to_string();
    for name in ["`aud`", "`email`", "`exp`", "`groups`", "`iat`", "`iss`", "`sub`"] {
        assert!(text.contains(name), "{text}");
    }
    for value in ["alice", "research", "headrace", "1700"] {
        assert!(!text.contains(value), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_changed_token_is_accepted(at in 0_usize..1000, to in proptest::char::range('!', '~')) {
        let key = SigningKey::new("k", "EdDSA");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let world = World::of(issuer(vec![rule("lab")]), &[&key]);
        let token = key.token("EdDSA", &claims());
        prop_assert!(runtime.block_on(world.sign_in(&token)).is_ok());
        let at = at % token.len();
        let mut changed: Vec<char> = token.chars().collect();
        // The last character of a part may have unused bits, which the decoder requires to be zero.
        prop_assume!(changed[at] != to);
        changed[at] = to;
        let changed: String = changed.into_iter().collect();
        prop_assert!(runtime.block_on(world.sign_in(&changed)).is_err(), "{changed}");
    }

    #[test]
    fn any_text_is_answered(text in "[ -~]{0,200}", header in "[ -~]{0,60}", payload in "[ -~]{0,60}") {
        let key = SigningKey::new("k", "EdDSA");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let world = World::of(issuer(vec![rule("lab")]), &[&key]);
        prop_assert!(runtime.block_on(world.sign_in(&text)).is_err());
        let signed = key.token_with("EdDSA", &header, &payload);
        prop_assert!(runtime.block_on(world.sign_in(&signed)).is_err());
    }
}
