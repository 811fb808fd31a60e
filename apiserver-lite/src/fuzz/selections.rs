//! Selectors, continue tokens and paths into objects.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{JSON, feed};
use crate::read::{Selector, Token, exact_name, field_requirements, label_requirements};
use crate::resource::Resources;

const WORDS: &[&str] = &[
    "=",
    "==",
    "!=",
    "!",
    ",",
    "(",
    ")",
    " in ",
    " notin ",
    "<",
    ">",
    " ",
    "\\",
    "\\,",
    "a",
    "k8s.io/",
    "\u{e9}",
    "\u{0}",
    "1",
    "metadata.name",
    "\n",
];

#[test]
fn label_selectors_are_read_or_refused() {
    let pods = Resources::built_in().lookup("", "v1", "pods").expect("is served");
    feed("selector", WORDS, |input| {
        let text = String::from_utf8_lossy(input);
        let read = Selector::parse(&pods, &text, "");
        assert_eq!(
            Selector::parse(&pods, &format!(" {text} "), "").is_ok(),
            read.is_ok(),
            "blanks around it say nothing"
        );
        if let Err(error) = &read {
            assert_eq!(error.code(), 400);
            assert!(label_requirements(&text).is_empty());
        }
    });
}

#[test]
fn field_selectors_are_read_or_refused() {
    let pods = Resources::built_in().lookup("", "v1", "pods").expect("is served");
    feed("fields", WORDS, |input| {
        let text = String::from_utf8_lossy(input);
        let read = Selector::parse(&pods, "", &text);
        if let Ok(selector) = &read {
            assert!(exact_name(&text).is_none_or(|name| selector.name() == Some(&name)), "{text}");
        }
        drop(field_requirements(&text));
    });
}

#[test]
fn continue_tokens_are_read_or_refused_and_lead_nowhere_else() {
    feed("token", JSON, |input| {
        for text in [URL_SAFE_NO_PAD.encode(input), String::from_utf8_lossy(input).into_owned()] {
            for namespaced in [true, false] {
                let Ok(token) = Token::decode(&text, "default", namespaced) else { continue };
                assert!(!token.after.name.split('/').any(|part| matches!(part, "." | "..")));
                let again = Token::decode(&token.encode(), "default", namespaced).expect("our own token");
                assert_eq!(again.after, token.after);
            }
        }
    });
}

#[test]
fn paths_into_objects_are_read_or_refused() {
    let object = serde_json::json!({"a": [{"b": 1, "name": "x"}, {"b": [2, {"name": "y"}]}], "name": {"name": null}});
    let words = [".", "..", "[", "]", "*", "?(@", "==", "'", "\"", ":", "-1", "\\.", "name", "{", "}", "99999999999"];
    feed("path", &words, |input| {
        let Some(path) = crate::crd::Path::parse(&String::from_utf8_lossy(input)) else { return };
        assert_eq!(path.first(&object), path.find(&object).first().copied());
    });
}
