//! What form an answer takes, from the `Accept` header.
//!
//! Kubernetes' negotiation is not that of the RFC: media types are compared as text, `q` values only order, and a clause
//! with parameters that the endpoint does not know is passed over.

use std::collections::HashMap;

use crate::status::ApiError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    pub fn name(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Content type of a watch.
    pub fn stream_name(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Yaml => "application/yaml;stream=watch",
            Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "application/json" => Some(Media::Json),
            "application/yaml" => Some(Media::Yaml),
            "application/vnd.kubernetes.protobuf" | "application/vnd.orchestrator.protobuf" => Some(Media::Protobuf),
            _ => None,
        }
    }
}

/// The form of the objects in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    #[default]
    Whole,
    Table,
    Metadata,
    MetadataList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    pub media: Media,
    pub form: Form,
    /// `v1` or `v1beta1` of `meta.k8s.io`, for forms.
    pub form_version: &'static str,
    pub pretty: bool,
}

impl Accepted {
    pub const JSON: Accepted = Accepted { media: Media::Json, form: Form::Whole, form_version: "v1", pretty: false };
}

/// Whether the answer is for a person's eyes: asked for, or a client that shows what it gets.
pub fn pretty(query: Option<&str>, agent: &str) -> bool {
    match query {
        Some(value) if !value.is_empty() => matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        _ => ["curl", "Wget", "Mozilla/5.0"].iter().any(|a| agent.starts_with(a)),
    }
}

/// One entry of an `Accept` header.
#[derive(Debug, Clone)]
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let media = parts.next()?.trim();
        let (kind, subtype) = match media.split_once('/') {
            Some((kind, subtype)) if !subtype.is_empty() && !subtype.contains('/') => (kind.trim(), subtype.trim()),
            None if media == "*" => ("*", "*"),
            _ => return None,
        };
        let mut clause = Clause { kind, subtype, quality: 1.0, parameters: Vec::new() };
        for (name, value) in parts.filter_map(|p| p.split_once('=')) {
            match name.trim() {
                // Text that is no number counts as 0, as upstream.
                "q" => clause.quality = value.trim().parse().unwrap_or(0.0),
                name if !value.is_empty() && !value.contains('=') => clause.parameters.push((name, value.trim())),
                _ => {}
            }
        }
        Some(clause)
    }

    /// Upstream's order. It is no strict order, so the sort below must be upstream's too.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || self.kind != "*" && other.kind == "*"
            || self.subtype != "*" && other.subtype == "*"
    }

    fn matches(&self, media: Media) -> bool {
        let subtype = media.name().trim_start_matches("application/");
        let ours = media == Media::Protobuf && self.subtype == "vnd.orchestrator.protobuf";
        match (self.kind, self.subtype) {
            ("*", "*") | ("application", "*") => true,
            ("application", wanted) => wanted == subtype || ours,
            _ => false,
        }
    }

    /// What the clause makes of a media type; None when its parameters ask for something that is not to be had.
    fn accept(&self, media: Media, forms: bool) -> Option<Accepted> {
        let (mut kind, mut group, mut version, mut converts, mut pretty) = ("", "", "", false, false);
        for &(name, value) in &self.parameters {
            match name {
                "as" => (kind, converts) = (value, true),
                "g" => (group, converts) = (value, true),
                "v" => (version, converts) = (value, true),
                "stream" if media == Media::Yaml || value != "watch" => return None,
                "sv" => return None,
                "pretty" => pretty = value == "1",
                _ => {}
            }
        }
        let mut accepted = Accepted { media, pretty, ..Accepted::JSON };
        if converts {
            if !forms || group != "meta.k8s.io" {
                return None;
            }
            accepted.form_version = match version {
                "v1" => "v1",
                "v1beta1" => "v1beta1",
                _ => return None,
            };
            accepted.form = match kind {
                "Table" if media != Media::Protobuf => Form::Table,
                "PartialObjectMetadata" => Form::Metadata,
                "PartialObjectMetadataList" => Form::MetadataList,
                _ => return None,
            };
        }
        Some(accepted)
    }
}

/// Clauses of a header that are looked at: sorting them takes time that grows with the square of their number, and a
/// header may be long. Clients send a handful.
const MOST_CLAUSES: usize = 256;

/// The clauses of an `Accept` header, best first.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept.split(',').take(MOST_CLAUSES).filter_map(Clause::parse).collect();
    for end in 1..clauses.len() {
        let mut at = end;
        while at > 0 && clauses[at].before(&clauses[at - 1]) {
            clauses.swap(at, at - 1);
            at -= 1;
        }
    }
    clauses
}

/// The media types of an `Accept` header, best first, as type and subtype; without a header any.
pub fn media_types(accept: &str) -> Vec<(&str, &str)> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    clauses(accept).into_iter().map(|clause| (clause.kind, clause.subtype)).collect()
}

/// Chooses the form of an answer. `forms` says whether Table and the metadata forms are to be had.
///
/// # Errors
/// 406 when no clause can be met.
pub fn negotiate(accept: &str, forms: bool, is_watch: bool, pretty: bool) -> Result<Accepted, ApiError> {
    if accept.is_empty() {
        return Ok(Accepted { pretty, ..Accepted::JSON });
    }
    let offers = [Media::Json, Media::Yaml, Media::Protobuf];
    let mut choices = clauses(accept).into_iter().flat_map(|clause| {
        let fitting = offers.into_iter().filter(|m| clause.matches(*m));
        fitting.filter_map(|m| clause.accept(m, forms)).collect::<Vec<_>>()
    });
    match choices.next() {
        Some(accepted) if is_watch && accepted.media == Media::Yaml => Err(not_acceptable(true)),
        Some(accepted) => Ok(Accepted { pretty: pretty || accepted.pretty, ..accepted }),
        None => Err(not_acceptable(is_watch)),
    }
}

/// The form of an error: what the client accepts of the plain media types, JSON for people otherwise.
pub fn for_error(accept: &str, pretty: bool) -> Accepted {
    negotiate(accept, false, false, pretty).unwrap_or(Accepted { pretty: true, ..Accepted::JSON })
}

/// The router's own look at `Accept`, before any handler's: one of its media types must be there word for word. The
/// message names all that the route produces.
///
/// # Errors
/// 406.
pub fn route_accepts(accept: &str, collection: bool) -> Result<(), ApiError> {
    const ITEM: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
    if types_of(accept).any(|media| Media::parse(media).is_some()) {
        return Ok(());
    }
    // Nobody finds the streams by name: a clause ends at its parameters.
    let streams = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
    let all: Vec<&str> = ITEM.into_iter().chain(streams.into_iter().filter(|_| collection)).collect();
    route_produces(accept, &all)
}

/// The same for a route that produces these media types and no others.
///
/// # Errors
/// 406.
pub fn route_produces(accept: &str, types: &[&str]) -> Result<(), ApiError> {
    if accept.is_empty() || types_of(accept).any(|media| media == "*/*" || types.contains(&media)) {
        return Ok(());
    }
    let text = format!("406: Not Acceptable\n\nAvailable representations: {}", types.join(", "));
    Err(ApiError::new(406, "NotAcceptable", text).with_details(crate::status::Details::default()))
}

/// The media types that a header names, without their parameters.
fn types_of(accept: &str) -> impl Iterator<Item = &str> {
    accept.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim())
}

/// The media type of the aggregated discovery document for a client that takes it; however much it likes the plain one.
pub fn aggregated(accept: &str) -> Option<Media> {
    let offers = [Media::Json, Media::Yaml, Media::Protobuf];
    let wanted = [("g", "apidiscovery.k8s.io"), ("v", "v2"), ("as", "APIGroupDiscoveryList")];
    let mut asking =
        clauses(accept).into_iter().filter(|c| wanted.iter().all(|parameter| c.parameters.contains(parameter)));
    asking.find_map(|clause| offers.into_iter().find(|media| clause.matches(*media)))
}

fn not_acceptable(is_watch: bool) -> ApiError {
    let types = if is_watch {
        "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
    } else {
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    };
    ApiError::new(406, "NotAcceptable", format!("only the following media types are accepted: {types}"))
}

/// The type that a `Content-Type` names, in small letters; None for one that Go's `mime` package does not take, with its
/// parameters.
fn media_type(header: &str) -> Option<String> {
    let is_token = |text: &str| {
        let special = |c: char| "()<>@,;:\\\"/[]?=".contains(c);
        !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !special(c))
    };
    let (named, mut rest) = header.split_at(header.find(';').unwrap_or(header.len()));
    let named = named.trim().to_lowercase();
    if !named.splitn(2, '/').all(is_token) {
        return None;
    }
    // A head may hold very many.
    let mut parameters: HashMap<String, String> = HashMap::new();
    while !rest.trim().is_empty() && rest.trim() != ";" {
        let parameter = rest.trim_start().strip_prefix(';')?.trim_start();
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim_start();
        let (value, after, quoted) = match value.strip_prefix('"') {
            None => {
                let (value, after) = value.split_at(value.find([';', ' ', '\t']).unwrap_or(value.len()));
                (value, after, false)
            }
            // Nobody puts a quote inside.
            Some(quoted) => quoted.split_once('"').map(|(value, after)| (value, after, true))?,
        };
        let name = name.trim_end().to_lowercase();
        let told_otherwise = parameters.get(&name).is_some_and(|said| said != value);
        if !is_token(&name) || told_otherwise || !quoted && !is_token(value) {
            return None;
        }
        parameters.insert(name, value.to_owned());
        rest = after;
    }
    Some(named)
}

/// Media types of a request body.
pub fn body_media(content_type: &str) -> Result<Media, ApiError> {
    if content_type.is_empty() {
        return Ok(Media::Json);
    }
    media_type(content_type).and_then(|text| Media::parse(&text)).ok_or_else(|| {
        ApiError::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many parameters as a head may hold; looked for in a list, they took minutes.
    #[test]
    fn very_many_parameters_are_gone_through_once() {
        let many: String = (0..150_000).map(|n| format!(";a{n}=b")).collect();
        assert_eq!(body_media(&format!("application/json{many}")).expect("a type"), Media::Json);
        assert!(body_media(&format!("application/json{many};a7=c")).is_err());
    }

    #[test]
    fn a_route_produces_what_it_says() {
        const JSON: [&str; 1] = ["application/json"];
        for good in ["", "*/*", "application/json;a=b", "text/html, application/json;q=0.1"] {
            assert!(route_produces(good, &JSON).is_ok(), "{good}");
        }
        for bad in ["text/html", "application/*", "application/yaml", "application/vnd.kubernetes.protobuf"] {
            let error = route_produces(bad, &JSON).expect_err(bad);
            assert_eq!(error.code(), 406);
            let text = "406: Not Acceptable\n\nAvailable representations: application/json";
            assert_eq!(error.status().message, text);
        }
        let error = route_accepts("text/html", false).expect_err("no page");
        assert!(error.status().message.ends_with("application/yaml, application/vnd.kubernetes.protobuf"));
        let error = route_accepts("text/html", true).expect_err("no page");
        assert!(error.status().message.ends_with(", application/vnd.kubernetes.protobuf;stream=watch"));
    }

    #[test]
    fn the_aggregated_document_is_had_in_every_form() {
        const OWN: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        for (media, form) in [
            ("application/json", Media::Json),
            ("application/yaml", Media::Yaml),
            ("application/vnd.kubernetes.protobuf", Media::Protobuf),
            ("*/*", Media::Json),
            ("application/*", Media::Json),
        ] {
            assert_eq!(aggregated(&format!("{media}{OWN}")), Some(form), "{media}");
            assert_eq!(aggregated(media), None, "{media}");
        }
        assert_eq!(aggregated(&format!("text/html{OWN}")), None);
        assert_eq!(aggregated(&format!("application/json,application/yaml{OWN};q=0.1")), Some(Media::Yaml));
        let older = OWN.replace("v2", "v2beta1");
        let both = format!("application/json{older},application/yaml{OWN},application/json");
        assert_eq!(aggregated(&both), Some(Media::Yaml));
        assert_eq!(aggregated(&format!("application/json{older},application/json")), None);
    }

    #[test]
    fn a_bodys_type_is_read_as_go_reads_it() {
        for good in [
            "",
            "application/json",
            "Application/JSON ; Charset=utf-8",
            "application/json;",
            "application/json; a=\"b c\"",
        ] {
            assert_eq!(body_media(good).expect(good), Media::Json);
        }
        assert_eq!(body_media("application/yaml;x=1;X=1").expect("two that agree"), Media::Yaml);
        for bad in [
            ";;",
            "application/",
            "text/plain",
            "application/json; charset",
            "application/json; a=1; a=2",
            "application/json x",
        ] {
            assert_eq!(body_media(bad).expect_err(bad).code(), 415, "{bad}");
        }
    }
}
