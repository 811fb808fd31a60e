//! Pressure stall information as bars.

use std::path::Path;

use serde_json::{Value, json};

const WIDTH: usize = 20;

/// Shares of time, in percent, in which some or all tasks waited for a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    pub some: [f64; 3],
    pub full: [f64; 3],
}

/// Reads `/proc/pressure/NAME`; `None` where the kernel does not tell.
pub fn read(root: &Path, resource: &str) -> Option<Pressure> {
    parse(&std::fs::read_to_string(root.join("proc/pressure").join(resource)).ok()?)
}

fn parse(text: &str) -> Option<Pressure> {
    let mut pressure = Pressure::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let kind = words.next()?;
        let mut averages = [0.0; 3];
        for (slot, word) in averages.iter_mut().zip(words) {
            *slot = word.split_once('=')?.1.parse().ok()?;
        }
        match kind {
            "some" => pressure.some = averages,
            "full" => pressure.full = averages,
            _ => {}
        }
    }
    Some(pressure)
}

impl Pressure {
    pub fn to_json(self) -> Value {
        let of = |a: [f64; 3]| json!({"avg10": a[0], "avg60": a[1], "avg300": a[2]});
        json!({"some": of(self.some), "full": of(self.full)})
    }
}

/// `percent` of a line of blocks; what is more than nothing shows.
pub fn bar(percent: f64) -> String {
    let share = (percent / 100.0).clamp(0.0, 1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and WIDTH")]
    let filled = (share * WIDTH as f64).ceil() as usize;
    format!("[{}{}]", "#".repeat(filled), ".".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let text = "some avg10=1.50 avg60=2.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.25 avg300=0.00 total=1\n";
        let pressure = parse(text).unwrap();
        assert_eq!((pressure.some, pressure.full[1]), ([1.5, 2.0, 0.1], 0.25));
        assert_eq!(parse("some avg10=x"), None);
        assert_eq!((bar(0.0), bar(0.1)), (format!("[{}]", ".".repeat(20)), format!("[#{}]", ".".repeat(19))));
        assert_eq!(bar(500.0), format!("[{}]", "#".repeat(20)));
    }
}
