//! Pages of metrics in the form that the scraper asks for, and compressed where he takes that.
//!
//! Followed: client_golang `promhttp`, which offers gzip and nothing else unless it is told to.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use super::answers::{Answer, bare};
use crate::metrics::{Snapshot, page};

/// Pages from this size on take more than a moment to compress, in which others go on.
const LARGE: usize = 64 << 10;

pub(super) fn answer(families: &[Snapshot], headers: &HeaderMap) -> Response<Answer> {
    let accept = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok()).unwrap_or_default();
    let (body, form) = page::page(families, accept);
    let packed = takes_gzip(headers).then(|| match body.len() {
        LARGE.. => tokio::task::block_in_place(|| gzip(&body)),
        _ => gzip(&body),
    });
    let packed = packed.flatten();
    let is_packed = packed.is_some();
    let mut response = bare(StatusCode::OK, packed.unwrap_or(body));
    let headers = response.headers_mut();
    // Made of constants alone.
    headers.extend(HeaderValue::try_from(form).ok().map(|form| (header::CONTENT_TYPE, form)));
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// The fastest level: pages are names that repeat, which any level shrinks to a tenth.
pub(super) fn gzip(body: &[u8]) -> Option<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    packed.write_all(body).and_then(|()| packed.finish()).ok()
}

/// Whether `Accept-Encoding` puts gzip above the page as it is. Of the two at the same weight it is the page as it is.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    let offers = lines.flat_map(|line| line.split(',')).map(|clause| {
        let (name, rest) = clause.split_once(';').unwrap_or((clause, ""));
        let weight = rest.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.trim().parse::<f64>().ok());
        (name.trim(), weight.filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0))
    });
    let (mut plain, mut gzip) = (-1.0_f64, -1.0_f64);
    for (name, weight) in offers {
        match name {
            "*" => (plain, gzip) = (plain.max(weight), gzip.max(weight)),
            "identity" => plain = plain.max(weight),
            "gzip" => gzip = gzip.max(weight),
            _ => {}
        }
    }
    gzip > 0.0 && gzip > plain
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use http_body_util::BodyExt as _;

    use super::*;

    fn asking(encodings: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_str(encodings).unwrap())])
    }

    #[test]
    fn gzip_is_for_those_who_name_it() {
        for yes in ["gzip", "deflate, gzip;q=0.5", "gzip;q=1.0, identity;q=0.5", "br,gzip"] {
            assert!(takes_gzip(&asking(yes)), "{yes}");
        }
        for no in ["", "*", "identity", "gzip;q=0", "gzip, identity", "gzip;q=x", "zstd"] {
            assert!(!takes_gzip(&asking(no)), "{no}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    /// Pages used to be sent as they are to everybody.
    #[tokio::test]
    async fn a_compressed_page_is_the_same_page() {
        let families = [Snapshot::gauge("g", "help").with(&[], 1.0)];
        let plain = answer(&families, &HeaderMap::new());
        assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
        let plain = plain.into_body().collect().await.unwrap().to_bytes();
        let packed = answer(&families, &asking("gzip"));
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        let packed = packed.into_body().collect().await.unwrap().to_bytes();
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut read).unwrap();
        assert_eq!(read, plain);
    }
}
