//! Metric families as protobuf writes messages for people: one line for each field, or one line for each family.
//!
//! Followed: Go's `prototext` (without its spaces at random) and `expfmt`, which ends each family with a line break more.

use super::page::number;
use super::wire::{Histogram, Metric, MetricFamily, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Lines,
    OneLine,
}

/// Appends a family.
pub fn write(family: &MetricFamily, layout: Layout, out: &mut Vec<u8>) {
    let mut writer = Writer { out: String::new(), layout, depth: 0, first: true };
    writer.text("name", family.name.as_deref());
    writer.text("help", family.help.as_deref());
    let kind = match family.kind {
        Some(0) => "COUNTER",
        Some(1) => "GAUGE",
        _ => "HISTOGRAM",
    };
    writer.plain("type", Some(kind));
    for metric in &family.metric {
        writer.message("metric", |writer| write_metric(writer, metric));
    }
    writer.out.push('\n');
    out.extend_from_slice(writer.out.as_bytes());
}

fn write_metric(writer: &mut Writer, metric: &Metric) {
    for label in &metric.label {
        writer.message("label", |writer| {
            writer.text("name", label.name.as_deref());
            writer.text("value", label.value.as_deref());
        });
    }
    for (name, value) in [("gauge", &metric.gauge), ("counter", &metric.counter)] {
        if let Some(value) = value {
            writer.message(name, |writer| {
                writer.float("value", value.value);
                writer.created(value.created_timestamp.as_ref());
            });
        }
    }
    if let Some(histogram) = &metric.histogram {
        writer.message("histogram", |writer| write_histogram(writer, histogram));
    }
    writer.plain("timestamp_ms", metric.timestamp_ms);
}

fn write_histogram(writer: &mut Writer, histogram: &Histogram) {
    writer.plain("sample_count", histogram.sample_count);
    writer.float("sample_sum", histogram.sample_sum);
    for bucket in &histogram.bucket {
        writer.message("bucket", |writer| {
            writer.plain("cumulative_count", bucket.cumulative_count);
            writer.float("upper_bound", bucket.upper_bound);
        });
    }
    writer.created(histogram.created_timestamp.as_ref());
    writer.plain("schema", histogram.schema);
    writer.float("zero_threshold", histogram.zero_threshold);
    writer.plain("zero_count", histogram.zero_count);
    for span in &histogram.positive_span {
        writer.message("positive_span", |writer| {
            writer.plain("offset", span.offset);
            writer.plain("length", span.length);
        });
    }
    for delta in &histogram.positive_delta {
        writer.plain("positive_delta", Some(delta));
    }
}

struct Writer {
    out: String,
    layout: Layout,
    depth: usize,
    /// Nothing of this message has been written.
    first: bool,
}

impl Writer {
    fn name(&mut self, name: &str) {
        match self.layout {
            Layout::Lines => (0..self.depth).for_each(|_| self.out.push_str("  ")),
            Layout::OneLine if self.first => {}
            Layout::OneLine => self.out.push(' '),
        }
        self.first = false;
        self.out.push_str(name);
        self.out.push_str(if self.layout == Layout::Lines { ": " } else { ":" });
    }

    fn end(&mut self) {
        if self.layout == Layout::Lines {
            self.out.push('\n');
        }
    }

    fn plain(&mut self, name: &str, value: Option<impl ToString>) {
        let Some(value) = value else { return };
        self.name(name);
        self.out.push_str(&value.to_string());
        self.end();
    }

    fn float(&mut self, name: &str, value: Option<f64>) {
        let text = value.map(|value| match number(value).as_str() {
            "NaN" => "nan".to_owned(),
            "+Inf" => "inf".to_owned(),
            "-Inf" => "-inf".to_owned(),
            finite => finite.to_owned(),
        });
        self.plain(name, text);
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.name(name);
        self.out.push('"');
        for c in value.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\0'..'\x20' | '\x7f' => self.out.push_str(&format!("\\x{:02x}", u32::from(c))),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        self.end();
    }

    fn created(&mut self, at: Option<&Timestamp>) {
        let Some(at) = at else { return };
        self.message("created_timestamp", |writer| {
            writer.plain("seconds", Some(at.seconds));
            // What is zero is not written of these.
            writer.plain("nanos", Some(at.nanos).filter(|nanos| *nanos != 0));
        });
    }

    fn message(&mut self, name: &str, fields: impl FnOnce(&mut Self)) {
        self.name(name);
        self.out.push('{');
        self.end();
        self.depth += 1;
        self.first = true;
        fields(self);
        self.first = false;
        self.depth -= 1;
        if self.layout == Layout::Lines {
            (0..self.depth).for_each(|_| self.out.push_str("  "));
        }
        self.out.push('}');
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::wire::{Bucket, Number};

    #[test]
    fn families_are_lines_or_a_line() {
        let histogram = Histogram {
            sample_count: Some(2),
            sample_sum: Some(f64::NAN),
            bucket: vec![Bucket { cumulative_count: Some(1), upper_bound: Some(1e6) }],
            ..Histogram::default()
        };
        let of_histogram = Metric { histogram: Some(histogram), timestamp_ms: Some(7), ..Metric::default() };
        let created_timestamp = Some(Timestamp { seconds: 5, nanos: 0 });
        let counter = Metric { counter: Some(Number { value: Some(3.0), created_timestamp }), ..Metric::default() };
        let family = |kind, metric| MetricFamily {
            name: Some("n".into()),
            help: Some("a \"b\"\n\u{1}\u{e4}".into()),
            kind: Some(kind),
            metric: vec![metric],
        };
        let written = |family: &MetricFamily, layout| {
            let mut out = Vec::new();
            write(family, layout, &mut out);
            String::from_utf8(out).unwrap()
        };
        let line = "name:\"n\" help:\"a \\\"b\\\"\\n\\x01\u{e4}\" type:HISTOGRAM metric:{histogram:{sample_count:2 sample_sum:nan \
                    bucket:{cumulative_count:1 upper_bound:1e+06}} timestamp_ms:7}\n";
        assert_eq!(written(&family(4, of_histogram), Layout::OneLine), line);
        let lines = "name: \"n\"\nhelp: \"a \\\"b\\\"\\n\\x01\u{e4}\"\ntype: COUNTER\nmetric: {\n  counter: {\n    value: 3\n    created_timestamp: {\n      seconds: 5\n    }\n  }\n}\n\n";
        assert_eq!(written(&family(0, counter), Layout::Lines), lines);
    }
}
