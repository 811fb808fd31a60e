//! What form an answer takes, from the `Accept` header.
//!
//! Kubernetes' negotiation is not that of the RFC: media types are compared as text, `q` values only order, and a clause
//! with parameters that the endpoint does not know is passed over.

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
        Some(value) => !matches!(value, "false" | "0"),
        None => ["curl", "Wget", "Mozilla/5.0"].iter().any(|a| agent.starts_with(a)),
    }
}

/// Chooses the form of an answer. `forms` says whether Table and the metadata forms are to be had.
///
/// # Errors
/// 406 when no clause can be met.
pub fn negotiate(accept: &str, forms: bool, is_watch: bool, pretty: bool) -> Result<Accepted, ApiError> {
    if accept.trim().is_empty() {
        return Ok(Accepted { pretty, ..Accepted::JSON });
    }
    let mut clauses: Vec<(f32, Accepted)> = Vec::new();
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media_text = parts.next().unwrap_or_default();
        let (mut quality, mut kind, mut group, mut version) = (1.0, None, None, None);
        for part in parts {
            match part.split_once('=') {
                Some(("q", q)) => quality = q.parse().unwrap_or(1.0),
                Some(("as", k)) => kind = Some(k),
                Some(("g", g)) => group = Some(g),
                Some(("v", v)) => version = Some(v),
                _ => {}
            }
        }
        let media = match media_text {
            "*/*" | "application/*" if media_text == "*/*" => Media::Json,
            text => match Media::parse(text) {
                Some(Media::Yaml) if is_watch => continue,
                Some(media) => media,
                None => continue,
            },
        };
        let form_version = match version {
            Some("v1beta1") => "v1beta1",
            _ => "v1",
        };
        let known = group.is_none_or(|g| g == "meta.k8s.io") && version.is_none_or(|v| matches!(v, "v1" | "v1beta1"));
        let form = match kind {
            None => Form::Whole,
            Some("Table") if forms && known && media != Media::Protobuf => Form::Table,
            Some("PartialObjectMetadata") if forms && known => Form::Metadata,
            Some("PartialObjectMetadataList") if forms && known => Form::MetadataList,
            Some(_) => continue,
        };
        clauses.push((quality, Accepted { media, form, form_version, pretty }));
    }
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    clauses.into_iter().next().map(|(_, accepted)| accepted).ok_or_else(|| not_acceptable(is_watch))
}

fn not_acceptable(is_watch: bool) -> ApiError {
    let types = if is_watch {
        "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
    } else {
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    };
    ApiError::new(406, "NotAcceptable", format!("only the following media types are accepted: {types}"))
}

/// Media types of a request body.
pub fn body_media(content_type: &str) -> Result<Media, ApiError> {
    let text = content_type.split(';').next().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(Media::Json);
    }
    Media::parse(text).ok_or_else(|| {
        ApiError::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf",
        )
    })
}
