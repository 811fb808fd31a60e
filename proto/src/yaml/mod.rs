//! YAML as Kubernetes reads and writes it: YAML 1.1 words (`yes`, `on`, `0o17`), the first of several documents, keys
//! made text; on output keys in natural order and the style rules of libyaml's emitter.
//!
//! Follows `sigs.k8s.io/yaml` and the go-yaml v2 it holds. Reading goes through `saphyr-parser`'s events, so only the
//! grammar comes from there; what a scalar means is decided in `resolve.rs`, which the writer asks as well before it
//! leaves quotes out.
//!
//! Limits: nesting up to 200, but for JSON, which is read as deep as JSON is; documents that aliases blow up are refused, as upstream.

mod fault;
mod go;
mod read;
mod resolve;
mod tokens;
mod write;

pub use read::{YamlError, read};
pub use write::write;

/// Reads the first document; of duplicate keys the last one counts. [`read`] also tells of duplicates.
///
/// # Errors
/// When the text is not YAML or has no form in JSON.
pub fn parse(text: &[u8]) -> Result<serde_json::Value, YamlError> {
    read(text).map(|parsed| parsed.value)
}

#[cfg(test)]
mod tests;
