//! The container hash: which changes of a container's spec mean a new container.
//!
//! Name and image only. FNV-1a 32 over the text in which Go's spew prints the bytes of the JSON object, kept because the
//! value is stored in the runtime and compared by whichever kubelet runs next.

use proto::api::core::v1::Container;

/// Lower-case hexadecimal without padding.
pub fn container_hash(container: &Container) -> String {
    use std::fmt::Write as _;
    let mut json = String::from("{\"image\":");
    go_json_string(&container.image, &mut json);
    json.push_str(",\"name\":");
    go_json_string(&container.name, &mut json);
    json.push('}');

    let mut text = String::with_capacity(json.len() * 4 + 12);
    text.push_str("([]uint8)[");
    for (i, byte) in json.bytes().enumerate() {
        if i > 0 {
            text.push(' ');
        }
        let _ = write!(text, "{byte}");
    }
    text.push(']');
    format!("{:x}", fnv1a_32(text.as_bytes()))
}

/// FNV-1a, 32 bits.
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

/// FNV-1a, 128 bits.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    const PRIME: u128 = (1 << 88) + (1 << 8) + 0x3b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(BASIS, |hash, &b| (hash ^ u128::from(b)).wrapping_mul(PRIME))
}

/// A string as `encoding/json` writes it (HTML characters escaped).
fn go_json_string(s: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &str, image: &str) -> String {
        container_hash(&Container { name: name.into(), image: image.into(), ..Default::default() })
    }

    #[test]
    fn hashes_are_those_of_the_kubelet() {
        assert_eq!(hash("test_container", "foo/image:v1"), "8e45cbd0");
        assert_eq!(hash("main", "noderec.test/box:1"), "80b633f");
        assert_eq!(hash("main", "busybox"), "b34e1a14");
    }

    #[test]
    fn fnv_matches_published_vectors() {
        assert_eq!(fnv1a_32(b"a"), 0xe40c_292c);
        assert_eq!(fnv1a_128(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
