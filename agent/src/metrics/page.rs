//! Pages of metrics: the Prometheus text format 0.0.4, or its protobuf form, length-delimited or as protobuf writes
//! messages for people.

use std::fmt::Write as _;

use prost::Message as _;

use super::family::{NATIVE_SCHEMA, NATIVE_ZERO, Native};
use super::prototext::{self, Layout};
use super::{Kind, Sample, Snapshot, Value, wire};

/// The forms without the scheme of escaping, which ends the content type.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    /// Messages with their lengths before them.
    Delimited,
    /// Messages for people to read.
    Readable(Layout),
}

impl Form {
    /// What `encoding` names of the protobuf forms.
    fn of_encoding(name: &str) -> Option<Self> {
        match name {
            "delimited" => Some(Form::Delimited),
            "text" => Some(Form::Readable(Layout::Lines)),
            "compact-text" => Some(Form::Readable(Layout::OneLine)),
            _ => None,
        }
    }

    fn content_type(self) -> String {
        match self {
            Form::Text => TEXT.to_owned(),
            Form::Delimited => format!("{PROTOBUF}delimited"),
            Form::Readable(Layout::Lines) => format!("{PROTOBUF}text"),
            Form::Readable(Layout::OneLine) => format!("{PROTOBUF}compact-text"),
        }
    }
}

/// What a scraper wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    form: Form,
    /// How names that older formats do not allow are to be written. No name here is such a one, so that all schemes give
    /// the same page; the scraper still is told his.
    escaping: &'static str,
}

const ESCAPINGS: [&str; 4] = ["allow-utf-8", "underscores", "dots", "values"];

/// One clause of an `Accept`.
struct Clause<'a> {
    media: &'a str,
    weight: f64,
    parameters: Vec<(&'a str, &'a str)>,
}

/// `None` for one without a subtype.
fn clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().filter(|media| *media == "*" || media.split('/').count() == 2)?;
    let parameters: Vec<(&str, &str)> = parts
        .filter_map(|part| part.split_once('='))
        .filter(|(_, value)| !value.is_empty() && !value.contains('='))
        .map(|(name, value)| (name.trim(), value.trim()))
        .collect();
    // What is no number is nothing, as Go reads it.
    let weight = |value: &str| value.parse().ok().filter(|q: &f64| q.is_finite()).unwrap_or(0.0);
    let weight = parameters.iter().rfind(|(name, _)| *name == "q").map_or(1.0, |(_, value)| weight(value));
    Some(Clause { media, weight, parameters })
}

/// As `expfmt.Negotiate` reads an `Accept`: the heaviest clause with a form there is, and the scheme of escaping that it or
/// one before it names. OpenMetrics is not served, as it is not by the kubelet.
fn negotiate(accept: &str) -> Wanted {
    let mut clauses: Vec<_> = accept.split(',').filter_map(|text| clause(text.trim())).collect();
    clauses.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut wanted = Wanted { form: Form::Text, escaping: "underscores" };
    for Clause { media, parameters, .. } in clauses {
        let get = |name: &str| parameters.iter().rfind(|(n, _)| *n == name).map(|(_, value)| *value);
        if let Some(known) = get("escaping").and_then(|asked| ESCAPINGS.into_iter().find(|known| *known == asked)) {
            wanted.escaping = known;
        }
        let form = match media {
            "application/vnd.google.protobuf" if get("proto") == Some("io.prometheus.client.MetricFamily") => {
                get("encoding").and_then(Form::of_encoding)
            }
            "text/plain" if get("version").is_none_or(|version| version == "0.0.4") => Some(Form::Text),
            _ => None,
        };
        if let Some(form) = form {
            return Wanted { form, ..wanted };
        }
    }
    wanted
}

/// The page in the form that `accept` asks for, and its content type.
pub fn page(families: &[Snapshot], accept: &str) -> (Vec<u8>, String) {
    let wanted = negotiate(accept);
    let body = match wanted.form {
        Form::Text => text(families).into_bytes(),
        Form::Delimited => protobuf(families, |message, out| {
            // Growing memory does not fail.
            let _ = message.encode_length_delimited(out);
        }),
        Form::Readable(layout) => protobuf(families, |message, out| prototext::write(&message, layout, out)),
    };
    (body, format!("{}; escaping={}", wanted.form.content_type(), wanted.escaping))
}

fn text(families: &[Snapshot]) -> String {
    let samples: usize = families.iter().map(|f| f.samples.len()).sum();
    let mut page = String::with_capacity(families.len() * 256 + samples * 128);
    // Most samples of a page are of one time.
    let mut time: Option<(i64, String)> = None;
    for family in families.iter().filter(|f| !f.samples.is_empty()) {
        let name = &family.name;
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        // Growing memory does not fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for sample in &family.samples {
            if let Some(at) = sample.time.filter(|at| time.as_ref().is_none_or(|(known, _)| known != at)) {
                time = Some((at, format!(" {at}")));
            }
            let mut line = Line { page: &mut page, name, sample, time: time.as_ref().map_or("", |(_, text)| text) };
            match &sample.value {
                Value::Number(value) => line.write("", None, |page| write_number(page, *value)),
                Value::Histogram { buckets, sum, .. } => {
                    for (bound, count) in buckets {
                        line.write("_bucket", Some(*bound), |page| write_count(page, *count));
                    }
                    line.write("_sum", None, |page| write_number(page, *sum));
                    let count = buckets.last().map_or(0, |(_, count)| *count);
                    line.write("_count", None, |page| write_count(page, count));
                }
            }
        }
    }
    page
}

/// What the lines of one sample have in common.
struct Line<'a> {
    page: &'a mut String,
    name: &'a str,
    sample: &'a Sample,
    /// With the blank before it. Counts only where the sample has a time.
    time: &'a str,
}

impl Line<'_> {
    fn write(&mut self, suffix: &str, bound: Option<f64>, value: impl FnOnce(&mut String)) {
        let page = &mut *self.page;
        page.push_str(self.name);
        page.push_str(suffix);
        self.sample.labels.write(page);
        if let Some(bound) = bound {
            page.push_str(if self.sample.labels.is_empty() { "{le=\"" } else { ",le=\"" });
            write_number(page, bound);
            page.push('"');
        }
        if bound.is_some() || !self.sample.labels.is_empty() {
            page.push('}');
        }
        page.push(' ');
        value(page);
        if self.sample.time.is_some() {
            page.push_str(self.time);
        }
        page.push('\n');
    }
}

/// Labels from the opening brace on, without the closing one; nothing for none.
pub(super) fn labels(pairs: &[(&'static str, String)], page: &mut String) {
    let mut separator = '{';
    for (name, value) in pairs {
        page.push(separator);
        separator = ',';
        page.push_str(name);
        page.push_str("=\"");
        escaped(page, value);
        page.push('"');
    }
}

fn write_count(page: &mut String, count: u64) {
    // Growing memory does not fail.
    let _ = write!(page, "{count}");
}

/// Nearly no value has anything to escape.
fn escaped(page: &mut String, value: &str) {
    if !value.bytes().any(|b| matches!(b, b'\\' | b'"' | b'\n')) {
        return page.push_str(value);
    }
    for c in value.chars() {
        match c {
            '\\' => page.push_str("\\\\"),
            '"' => page.push_str("\\\""),
            '\n' => page.push_str("\\n"),
            c => page.push(c),
        }
    }
}

/// The nearest float; the formats have no other numbers.
pub fn to_float(value: u64) -> f64 {
    const HIGH: f64 = 4_294_967_296.0;
    let (high, low) = (value >> 32, value & 0xffff_ffff);
    f64::from(u32::try_from(high).unwrap_or(u32::MAX)) * HIGH + f64::from(u32::try_from(low).unwrap_or(u32::MAX))
}

/// As Go's shortest form prints floats: with an exponent from a million on, and below a ten-thousandth.
pub fn number(value: f64) -> String {
    let mut text = String::new();
    write_number(&mut text, value);
    text
}

fn write_number(page: &mut String, value: f64) {
    let size = value.abs();
    // Growing memory does not fail.
    let _ = if value.is_nan() {
        page.push_str("NaN");
        Ok(())
    } else if value.is_infinite() {
        page.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        Ok(())
    } else if value == 0.0 || (1e-4..1e6).contains(&size) {
        write!(page, "{value}")
    } else {
        let from = page.len();
        let written = write!(page, "{value:e}");
        // Two digits of exponent at least, and its sign.
        if let Some(at) = page[from..].find('e').map(|at| from + at + 1) {
            let is_below_one = page[at..].starts_with('-');
            let digits = at + usize::from(is_below_one);
            if page.len() - digits < 2 {
                page.insert(digits, '0');
            }
            if !is_below_one {
                page.insert(at, '+');
            }
        }
        written
    };
}

fn protobuf(families: &[Snapshot], mut write: impl FnMut(wire::MetricFamily, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    for family in families.iter().filter(|f| !f.samples.is_empty()) {
        let message = wire::MetricFamily {
            name: Some(family.name.to_string()),
            help: Some(family.help.clone()),
            kind: Some(match family.kind {
                Kind::Counter => 0,
                Kind::Gauge => 1,
                Kind::Histogram => 4,
            }),
            metric: family.samples.iter().map(|s| metric(family.kind, s)).collect(),
        };
        write(message, &mut out);
    }
    out
}

fn metric(kind: Kind, sample: &Sample) -> wire::Metric {
    let pair =
        |(name, value): &(&str, String)| wire::LabelPair { name: Some((*name).to_owned()), value: Some(value.clone()) };
    let mut metric = wire::Metric {
        label: sample.labels.iter().map(pair).collect(),
        timestamp_ms: sample.time,
        ..wire::Metric::default()
    };
    let created =
        sample.created.map(|at| wire::Timestamp { seconds: at.seconds, nanos: i32::try_from(at.nanos).unwrap_or(0) });
    match &sample.value {
        Value::Number(value) if kind == Kind::Counter => {
            metric.counter = Some(wire::Number { value: Some(*value), created_timestamp: created });
        }
        Value::Number(value) => {
            metric.gauge = Some(wire::Number { value: Some(*value), created_timestamp: None });
        }
        Value::Histogram { buckets, sum, native } => {
            let bucket = |(bound, count): &(f64, u64)| wire::Bucket {
                cumulative_count: Some(*count),
                upper_bound: Some(*bound),
            };
            // The infinite bucket is the count itself.
            let finite = buckets.iter().filter(|(bound, _)| bound.is_finite());
            let mut histogram = wire::Histogram {
                sample_count: Some(buckets.last().map_or(0, |(_, count)| *count)),
                sample_sum: Some(*sum),
                bucket: finite.map(bucket).collect(),
                created_timestamp: created,
                ..wire::Histogram::default()
            };
            if let Some(native) = native {
                add_native(&mut histogram, native);
            }
            metric.histogram = Some(histogram);
        }
    }
    metric
}

/// Runs of neighbouring buckets, each with its distance from the run before, and counts as differences.
fn add_native(histogram: &mut wire::Histogram, native: &Native) {
    histogram.schema = Some(NATIVE_SCHEMA);
    histogram.zero_threshold = Some(NATIVE_ZERO);
    histogram.zero_count = Some(native.zero);
    let (mut next, mut before) = (0_i32, 0_i64);
    for (index, count) in &native.positive {
        match histogram.positive_span.last_mut() {
            Some(run) if *index == next => run.length = Some(run.length.unwrap_or(0) + 1),
            _ => histogram.positive_span.push(wire::Span { offset: Some(index - next), length: Some(1) }),
        }
        next = index + 1;
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        histogram.positive_delta.push(count - before);
        before = count;
    }
    if native.positive.is_empty() && native.zero == 0 {
        // An empty run is what tells a native histogram from one that only has fixed buckets.
        histogram.positive_span.push(wire::Span { offset: Some(0), length: Some(0) });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Labels;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn numbers_read_as_go_writes_them() {
        let texts = [
            (0.0, "0"),
            (1.5, "1.5"),
            (123_456_789.0, "1.23456789e+08"),
            (0.000_05, "5e-05"),
            (0.000_1, "0.0001"),
            (2_592_000.0, "2.592e+06"),
            (604_800.0, "604800"),
            (999_999.5, "999999.5"),
            (1e6, "1e+06"),
            (1.234e120, "1.234e+120"),
            (9.999_999e-5, "9.999999e-05"),
            (3e-310, "3e-310"),
            (-1.5, "-1.5"),
            (-2.5e9, "-2.5e+09"),
            (-1e-7, "-1e-07"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
        ];
        for (value, text) in texts {
            assert_eq!(number(value), text);
        }
        assert!((to_float(u64::MAX) - 1.844_674_407_370_955_2e19).abs() < 1.0);
    }

    #[test]
    fn histograms_are_lines_with_bounds_and_labels_are_escaped() {
        let value = Value::Histogram { buckets: vec![(1.0, 1), (f64::INFINITY, 2)], sum: 3.5, native: None };
        let labels = [("a", "x\"y".to_owned())].into();
        let samples = vec![Sample { labels, value, time: Some(7), created: None }];
        let family = Snapshot { name: "h".into(), help: "what".into(), kind: Kind::Histogram, samples };
        let want = "# HELP h what\n# TYPE h histogram\nh_bucket{a=\"x\\\"y\",le=\"1\"} 1 7\nh_bucket{a=\"x\\\"y\",\
                    le=\"+Inf\"} 2 7\nh_sum{a=\"x\\\"y\"} 3.5 7\nh_count{a=\"x\\\"y\"} 2 7\n";
        assert_eq!(text(&[family]), want);
    }

    #[test]
    fn labels_are_the_same_text_for_one_sample_and_for_many() {
        let labels: Labels = [("a", "x\"y\\".to_owned()), ("b", "\n".to_owned())].into();
        let sample = |labels: Labels, time| Sample { labels, value: Value::Number(1.0), time, created: None };
        let family = |samples| Snapshot { name: "g".into(), help: "what".into(), kind: Kind::Gauge, samples };
        let head = "# HELP g what\n# TYPE g gauge\n";
        let line = "g{a=\"x\\\"y\\\\\",b=\"\\n\"} 1";
        let alone: Labels = labels.iter().cloned().collect();
        assert_eq!(text(&[family(vec![sample(alone, None)])]), format!("{head}{line}\n"));
        let many = vec![
            sample(labels.clone(), Some(5)),
            sample(labels.clone(), None),
            sample(labels.clone(), Some(-6)),
            sample(Labels::default(), Some(5)),
        ];
        assert_eq!(text(&[family(many)]), format!("{head}{line} 5\n{line}\n{line} -6\ng 1 5\n"));
    }

    #[test]
    fn neighbouring_exponential_buckets_form_runs() {
        let mut histogram = wire::Histogram::default();
        let native = Native { zero: 1, positive: BTreeMap::from([(-2, 4), (-1, 1), (3, 2)]) };
        add_native(&mut histogram, &native);
        let runs: Vec<(i32, u32)> = histogram.positive_span.iter().map(|s| (s.offset(), s.length())).collect();
        assert_eq!(runs, [(-2, 2), (3, 1)]);
        assert_eq!(histogram.positive_delta, [4, -3, 1]);
    }

    #[test]
    fn protobuf_is_for_those_who_prefer_it() {
        let wants_protobuf = |accept: &str| negotiate(accept).form == Form::Delimited;
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        assert!(wants_protobuf(protobuf));
        assert!(wants_protobuf(&format!("{protobuf};q=0.7,text/plain;version=0.0.4;q=0.3")));
        assert!(!wants_protobuf(&format!("{protobuf};q=0.3,text/plain;q=0.5")));
        assert!(!wants_protobuf("application/openmetrics-text;version=1.0.0"));
        assert!(!wants_protobuf(""));
        assert!(!wants_protobuf(&format!("text/plain, {protobuf}")), "of equals the first counts");
        assert!(wants_protobuf(&format!("text, text/plain;version=1.0.0, {protobuf}")));
    }

    /// The scheme of escaping was always said to be underscores, which breaks a scraper that has asked for another.
    #[test]
    fn the_scheme_of_escaping_is_the_asked_one() {
        let form = |accept: &str| page(&[], accept).1;
        let text = "text/plain; version=0.0.4; charset=utf-8; escaping=";
        // As Prometheus 3 asks.
        let asked = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                     application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                     text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(form(asked), format!("{text}allow-utf-8"));
        assert_eq!(form(""), format!("{text}underscores"));
        assert_eq!(form("text/plain;escaping=dots"), format!("{text}dots"));
        assert_eq!(form("text/plain;escaping=other"), format!("{text}underscores"));
        assert_eq!(
            form("text/plain;version=0.0.4;q=0.5,text/plain;escaping=values;q=0.1"),
            format!("{text}underscores")
        );
        let protobuf = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
        assert_eq!(form(&format!("{protobuf}; escaping=values")), format!("{protobuf}; escaping=values"));
    }

    /// Only the delimited encoding used to be known; who asked for another got the text format.
    #[test]
    fn protobuf_is_readable_for_those_who_ask_for_that() {
        let protobuf = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=";
        let gauge = [Snapshot::gauge("g", "help").with(&[("a", "b")], 1.5)];
        let (body, form) = page(&gauge, &format!("{protobuf}compact-text"));
        assert_eq!(form, format!("{protobuf}compact-text; escaping=underscores"));
        let line = "name:\"g\" help:\"help\" type:GAUGE metric:{label:{name:\"a\" value:\"b\"} gauge:{value:1.5}}\n";
        assert_eq!(String::from_utf8(body).unwrap(), line);
        let (body, form) = page(&gauge, &format!("{protobuf}text;q=0.9,text/plain;q=0.1"));
        assert_eq!(form, format!("{protobuf}text; escaping=underscores"));
        assert!(body.starts_with(b"name: \"g\"\nhelp: \"help\"\ntype: GAUGE\nmetric: {\n  label: {\n"));
        assert!(page(&gauge, &format!("{protobuf}other")).1.starts_with(TEXT));
    }
}
