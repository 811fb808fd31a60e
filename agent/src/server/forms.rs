//! Forms in the bodies of requests, as Go's `Request.ParseForm` reads them.

use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;

use super::multipart;
use super::route::parse_query;

/// Go reads ten times as much; a form here has a few options.
const MAX_FORM: usize = 1 << 20;

/// The values of a form and of the query, those of the form first, and the first mistake in either.
pub(super) struct Form {
    pairs: Vec<(String, String)>,
    /// How many of the pairs are the form's; those of the query end at `query_end`.
    posted: usize,
    query_end: usize,
    pub mistake: Option<String>,
}

impl Form {
    /// Reads the body if it is a form, also one in parts (Go's `FormValue`). Values of parts come after the query.
    pub async fn read_with_parts(request: &mut Request<Incoming>) -> Self {
        let told = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let Some(boundary) = told.and_then(multipart::boundary) else { return Self::read(request).await };
        let body = Limited::new(request.body_mut(), MAX_FORM).collect().await;
        let mut form = Self::of(request.uri().query().unwrap_or(""), Ok(String::new()));
        // What cannot be read is no form, and says nothing.
        if let Some(values) = body.ok().and_then(|body| multipart::values(&body.to_bytes(), &boundary)) {
            form.add_parts(values);
        }
        form
    }

    fn add_parts(&mut self, values: Vec<(String, String)>) {
        self.query_end = self.pairs.len();
        self.pairs.extend(values);
    }

    /// Reads the body if it is a form (Go's `ParseForm`).
    pub async fn read(request: &mut Request<Incoming>) -> Self {
        let posts = matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
        let kind = if posts { media_type(request.headers()) } else { Ok(String::new()) };
        let body = match &kind {
            Ok(kind) if kind == "application/x-www-form-urlencoded" => {
                match Limited::new(request.body_mut(), MAX_FORM).collect().await {
                    Ok(body) => Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned()),
                    Err(error) if error.is::<http_body_util::LengthLimitError>() => Err("http: POST too large".into()),
                    Err(error) => Err(error.to_string()),
                }
            }
            Ok(_) => Ok(String::new()),
            Err(why) => Err((*why).to_owned()),
        };
        Self::of(request.uri().query().unwrap_or(""), body)
    }

    fn of(query: &str, body: Result<String, String>) -> Self {
        let (mut pairs, mistake) = match body {
            Ok(body) => parse_query(&body),
            Err(why) => (Vec::new(), Some(why)),
        };
        let posted = pairs.len();
        let (asked, later) = parse_query(query);
        pairs.extend(asked);
        Form { query_end: pairs.len(), pairs, posted, mistake: mistake.or(later) }
    }

    /// All values of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of that name; empty without one.
    pub fn first(&self, name: &str) -> &str {
        self.pairs.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// All values of that name in the query alone.
    pub fn of_query<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.pairs.get(self.posted..self.query_end).unwrap_or_default();
        pairs.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
impl Form {
    /// Of a query and a body that is a form.
    pub fn made(query: &str, body: &str) -> Self {
        Self::of(query, Ok(body.to_owned()))
    }
}

/// The type of a body without its parameters; something that is no form where none is told.
///
/// # Errors
/// In the words of Go's `mime`, for what is no type.
fn media_type(headers: &HeaderMap) -> Result<String, &'static str> {
    let told = headers.get(header::CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    let Some(told) = told.filter(|told| !told.is_empty()) else { return Ok(String::new()) };
    let base = told.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let token = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_graphic() || "()<>@,;:\\\"/[]?=".contains(c));
        end.unwrap_or(text.len())
    };
    match base.split_at(token(&base)) {
        ("", _) => Err("mime: no media type"),
        (_, "") => Ok(base),
        (_, rest) => match rest.strip_prefix('/').map(|subtype| (subtype, token(subtype))) {
            None => Err("mime: expected slash after first token"),
            Some((_, 0)) => Err("mime: expected token after slash"),
            Some((subtype, end)) if end < subtype.len() => Err("mime: unexpected content after media subtype"),
            Some(_) => Ok(base),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn what_is_posted_comes_before_the_query() {
        let form = Form::made("cmd=a&x=1", "cmd=b+c&y=%zz");
        assert_eq!((form.first("cmd"), form.first("x"), form.first("y")), ("b c", "1", ""));
        assert_eq!(form.all("cmd").collect::<Vec<_>>(), ["b c", "a"]);
        assert_eq!(form.of_query("cmd").collect::<Vec<_>>(), ["a"]);
        assert_eq!(form.mistake.as_deref(), Some("invalid URL escape \"%zz\""));
        let mut parts = Form::made("cmd=a", "");
        parts.add_parts(vec![("cmd".into(), "b".into()), ("x".into(), "c".into())]);
        assert_eq!((parts.first("cmd"), parts.first("x")), ("a", "c"), "parts come last");
        assert_eq!(parts.of_query("cmd").collect::<Vec<_>>(), ["a"]);
        let refused = Form::of("cmd=a&b=%", Err("http: POST too large".into()));
        assert_eq!((refused.first("cmd"), refused.mistake.as_deref()), ("a", Some("http: POST too large")));
    }

    #[test]
    fn types_are_compared_without_case_and_parameters() {
        let of = |kind: &str| {
            media_type(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_str(kind).unwrap())]))
        };
        let form = "application/x-www-form-urlencoded";
        assert_eq!(of("Application/X-WWW-Form-Urlencoded; charset=utf-8").as_deref(), Ok(form));
        assert_eq!(of("text"), Ok("text".into()));
        assert_eq!(of(";x"), Err("mime: no media type"));
        assert_eq!(of("a b"), Err("mime: expected slash after first token"));
        assert_eq!(of("a/"), Err("mime: expected token after slash"));
        assert_eq!(of("a/b c"), Err("mime: unexpected content after media subtype"));
        assert_eq!(media_type(&HeaderMap::new()), Ok(String::new()));
    }
}
