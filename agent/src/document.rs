//! Configuration documents: YAML, of which JSON is a part.

use serde_json::Value;

/// Why a document cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DocumentError(String);

/// Reads one document; of duplicate keys the last one counts.
///
/// # Errors
/// With the parser's words on what is wrong and where.
pub fn parse(text: &[u8]) -> Result<Value, DocumentError> {
    proto::yaml::parse(text).map_err(|e| DocumentError(e.to_string()))
}
