//! Numbers at the edges of what JSON can say.

use serde_json::Value;

fn written(text: &str) -> Result<String, String> {
    let value = proto::json::parse(text.as_bytes()).map_err(|e| e.to_string())?.value;
    let mut out = Vec::new();
    proto::json::write_sorted(&value, &mut out);
    Ok(String::from_utf8(out).expect("JSON is UTF-8"))
}

#[test]
fn numbers_are_written_as_go_writes_them() {
    for (text, wanted) in [
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "-0"),
        ("-0e3", "-0"),
        ("1.0", "1"),
        ("1e2", "100"),
        ("0.1", "0.1"),
        ("1E-7", "1e-7"),
        ("1e21", "1e+21"),
        ("123456789.5", "123456789.5"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
    ] {
        assert_eq!(written(text).as_deref(), Ok(wanted), "{text}");
    }
    assert!(written("1e400").is_err(), "no such number");
    for text in ["01", "-", "1.", ".5", "1e", "+1", "0x1", "NaN", "-Infinity", "1_0"] {
        assert!(written(text).is_err(), "{text}");
    }
}

#[test]
fn a_number_that_is_written_is_the_same_number_when_it_is_read_again() {
    for text in ["-0.0", "-0e3", "1.0", "9223372036854775808", "18446744073709551616", "1e22", "-1e-400", "5e-324"] {
        let once = written(text).expect("a number");
        let twice = written(&once).expect("a number");
        let number = |text: &str| serde_json::from_str::<Value>(text).ok().and_then(|v| v.as_f64());
        assert_eq!(number(&once), number(text), "{text}");
        assert_eq!(number(&twice), number(text), "{text}");
    }
}
