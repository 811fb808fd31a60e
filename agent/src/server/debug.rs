//! `/debug`: what a running agent tells its maintainers, and the verbosity of its log.

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use super::answers::{Answer, text};
use super::profiles;
use crate::log_level;

/// A level is a number; more than this is none.
const MAX_BODY: usize = 64;

pub(super) async fn profile(name: &str, query: &str) -> Response<Answer> {
    match name {
        "cmdline" => {
            let words = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>();
            text(StatusCode::OK, words.join("\0"))
        }
        // No addresses of this program can be looked up.
        "symbol" => text(StatusCode::OK, "num_symbols: 0\n"),
        name => profiles::answer(name, query).await,
    }
}

/// `PUT` of a number sets the verbosity of the log.
pub(super) async fn log_level(request: Request<Incoming>) -> Response<Answer> {
    let mut answer = if request.method() == Method::PUT {
        match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => set(&String::from_utf8_lossy(&body.to_bytes())),
            Err(error) => text(StatusCode::BAD_REQUEST, format!("error reading request body: {error}\n")),
        }
    } else {
        text(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n")
    };
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

fn set(word: &str) -> Response<Answer> {
    let refused = |why: &str| text(StatusCode::BAD_REQUEST, format!("strconv.ParseUint: parsing {word:?}: {why}\n"));
    if word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
        return refused("invalid syntax");
    }
    let Ok(level) = word.parse::<u32>() else { return refused("value out of range") };
    match log_level::set(level) {
        Ok(()) => text(StatusCode::OK, format!("successfully set klog.logging.verbosity to {level}\n")),
        Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}
