//! Whose rights a kubeconfig's user asks for: `as` and what belongs to it.

use http::{HeaderName, HeaderValue};
use serde_json::Value;

/// `as` and what belongs to it, as headers.
pub(super) fn impersonation(user: &Value) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let texts = |value: Option<&Value>| -> Vec<String> {
        let list = value.and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut wanted = Vec::new();
    for (key, header) in [("as", "impersonate-user"), ("as-uid", "impersonate-uid")] {
        if !text_of(user, key).is_empty() {
            wanted.push((header.to_owned(), text_of(user, key).to_owned()));
        }
    }
    wanted.extend(texts(user.get("as-groups")).into_iter().map(|group| ("impersonate-group".to_owned(), group)));
    for (key, values) in user.get("as-user-extra").and_then(Value::as_object).into_iter().flatten() {
        let name = format!("impersonate-extra-{}", escaped(key));
        wanted.extend(texts(Some(values)).into_iter().map(|value| (name.clone(), value)));
    }
    let header = |(name, value): (String, String)| {
        let refused = || format!("{name}: {value:?} holds characters that a header cannot");
        let header = HeaderName::try_from(&name).map_err(|_| refused())?;
        Ok((header, HeaderValue::from_str(&value).map_err(|_| refused())?))
    };
    wanted.into_iter().map(header).collect()
}

/// What a header's name cannot hold, as `%41`.
fn escaped(key: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    key.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn text_of<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_users_rights_are_asked_for_by_headers() {
        let user = serde_json::json!({
            "as": "u", "as-uid": "1", "as-groups": ["g", "h"], "as-user-extra": {"a/b": ["x", "y"]},
        });
        let headers = impersonation(&user).expect("headers");
        let shown: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().expect("text"))).collect();
        assert_eq!(
            shown,
            [
                ("impersonate-user", "u"),
                ("impersonate-uid", "1"),
                ("impersonate-group", "g"),
                ("impersonate-group", "h"),
                ("impersonate-extra-a%2fb", "x"),
                ("impersonate-extra-a%2fb", "y"),
            ]
        );
        assert!(impersonation(&serde_json::json!({"as": "a\nb"})).is_err());
        assert_eq!(impersonation(&serde_json::json!({})), Ok(Vec::new()));
    }
}
