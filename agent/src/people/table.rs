//! Columns of text as wide as their widest cell.

/// Prints rows below a header; numbers and all else to the left, as kubectl does.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&printable(cell));
            line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 3));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Text that cannot steer a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Bytes in powers of 1024, three figures.
pub fn bytes(count: u64) -> String {
    let mut amount = count as f64;
    for unit in ["B", "Ki", "Mi", "Gi"] {
        if amount < 1024.0 {
            return if unit == "B" || amount >= 100.0 {
                format!("{amount:.0}{unit}")
            } else {
                format!("{amount:.1}{unit}")
            };
        }
        amount /= 1024.0;
    }
    format!("{amount:.1}Ti")
}

/// A time span as kubectl tells ages: two units where one would say too little.
pub fn age(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |seconds: i64, (unit, word): (i64, char), (lesser, lesser_word): (i64, char)| match (
        seconds / unit,
        seconds % unit / lesser,
    ) {
        (whole, 0) => format!("{whole}{word}"),
        (whole, rest) => format!("{whole}{word}{rest}{lesser_word}"),
    };
    match seconds.max(0) {
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s, (MINUTE, 'm'), (1, 's')),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s, (HOUR, 'h'), (MINUTE, 'm')),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s, (DAY, 'd'), (HOUR, 'h')),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s, (YEAR, 'y'), (DAY, 'd')),
        s => format!("{}y", s / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_terminals_are_safe() {
        let text = render(&["NAME", "X"], &[vec!["longer".into(), "1".into()], vec!["a\u{1b}[2J".into(), "22".into()]]);
        assert_eq!(text, "NAME     X\nlonger   1\na?[2J    22\n");
        assert_eq!((bytes(1023), bytes(1536), bytes(300 << 20)), ("1023B".into(), "1.5Ki".into(), "300Mi".into()));
        let ages = [5, 119, 125, 3600, 4 * 3600 + 60, 86_400 * 3, 86_400 * 3 + 7200, 86_400 * 365].map(age);
        assert_eq!(ages, ["5s", "119s", "2m5s", "60m", "4h1m", "3d", "3d2h", "365d"]);
    }
}
