//! Where requests carry bearer tokens, as the servers of Kubernetes look for them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Of a WebSocket, whose browsers cannot set headers: this, then the token in base64, among the subprotocols.
const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The token of an `Authorization` header; None where it is of another scheme or is none. What follows the second word
/// does not count.
pub fn of_header(authorization: &str) -> Option<&str> {
    let mut words = authorization.trim().splitn(3, ' ');
    let scheme = words.next()?;
    words.next().filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Whether a request with these values of `Connection` and `Upgrade` asks for a WebSocket: lists of words, in any case.
pub fn asks_for_websocket<'a>(
    connection: impl IntoIterator<Item = &'a str>,
    upgrade: impl IntoIterator<Item = &'a str>,
) -> bool {
    names(connection, "upgrade") && names(upgrade, "websocket")
}

fn names<'a>(values: impl IntoIterator<Item = &'a str>, wanted: &str) -> bool {
    values.into_iter().flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

/// A token among the subprotocols of a WebSocket, and what is left of them for the handshake.
#[derive(Debug, PartialEq, Eq)]
pub struct OfProtocols {
    pub token: String,
    pub others: String,
}

/// The token among the values of `Sec-WebSocket-Protocol`; None where there is none.
///
/// # Errors
/// One that is not written as it should be, a second one, or nothing beside it for the server to agree to.
pub fn of_protocols<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Option<OfProtocols>, &'static str> {
    let (mut token, mut others) = (None, Vec::new());
    for protocol in values.into_iter().flat_map(|value| value.split(',')).map(str::trim) {
        let Some(encoded) = protocol.strip_prefix(PROTOCOL) else {
            others.push(protocol);
            continue;
        };
        if token.is_some() {
            return Err("multiple base64.bearer.authorization tokens specified");
        }
        let bytes =
            URL_SAFE_NO_PAD.decode(encoded).map_err(|_| "invalid base64.bearer.authorization token encoding")?;
        token = Some(String::from_utf8(bytes).map_err(|_| "invalid base64.bearer.authorization token")?);
    }
    match token.filter(|token| !token.is_empty()) {
        Some(_) if others.is_empty() => Err("missing additional subprotocol"),
        token => Ok(token.map(|token| OfProtocols { token, others: others.join(",") })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_word_is_the_token_whatever_the_case_of_the_first() {
        for text in ["Bearer a", "bearer a", " BEARER a ", "Bearer a b c"] {
            assert_eq!(of_header(text), Some("a"), "{text}");
        }
        for text in ["", "Bearer", "Bearer ", "Bearer  a", "Basic a", "a"] {
            assert_eq!(of_header(text), None, "{text}");
        }
    }

    #[test]
    fn a_websocket_is_asked_for_by_two_headers() {
        assert!(asks_for_websocket(["keep-alive, Upgrade"], ["h2c", " WebSocket"]));
        assert!(!asks_for_websocket(["keep-alive"], ["websocket"]));
        assert!(!asks_for_websocket(["upgrade"], ["SPDY/3.1"]));
        assert!(!asks_for_websocket([], ["websocket"]));
    }

    #[test]
    fn a_token_among_subprotocols_leaves_the_others() {
        let found = |token: &str, others: &str| Ok(Some(OfProtocols { token: token.into(), others: others.into() }));
        let own = format!("{PROTOCOL}YWJj");
        assert_eq!(of_protocols([&*format!("v5, {own} ,v4")]), found("abc", "v5,v4"));
        assert_eq!(of_protocols([&*own, "v4"]), found("abc", "v4"));
        assert_eq!(of_protocols(["v4", "v5"]), Ok(None));
        assert_eq!(of_protocols([]), Ok(None));
        assert_eq!(of_protocols([&*format!("{PROTOCOL}, v4")]), Ok(None));
        assert_eq!(of_protocols([&*own]), Err("missing additional subprotocol"));
        assert!(of_protocols([&*own, &*own, "v4"]).is_err());
        assert!(of_protocols([&*format!("{PROTOCOL}YWJj=, v4")]).is_err());
        assert!(of_protocols([&*format!("{PROTOCOL}_w, v4")]).is_err());
    }
}
