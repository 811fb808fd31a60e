//! What a request for a stream asks for in its query.

use super::super::forms::Form;
use super::super::route::query_pairs;

/// Ports of one request at most; each is a pair of streams.
const MAX_PORTS: usize = 1024;

/// Streams of exec and attach, and the command of exec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    pub command: Vec<String>,
}

impl Options {
    /// What the query asks for, and the form in the body, which may ask for streams too.
    ///
    /// # Errors
    /// The kubelet's words for a request without any stream.
    pub fn of(form: &Form) -> Result<Self, &'static str> {
        // Nothing but this one word switches a stream on, where it comes first; a form comes before the query.
        let on = |name: &str| form.first(name) == "1";
        let mut options = Options {
            stdin: on("input"),
            stdout: on("output"),
            stderr: on("error"),
            tty: on("tty"),
            ..Options::default()
        };
        options.command = form.of_query("command").map(str::to_owned).collect();
        // A terminal has one output stream.
        options.stderr &= !options.tty;
        if !options.stdin && !options.stdout && !options.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        Ok(options)
    }
}

/// Ports named in the query, which only clients of the WebSocket protocol need to do.
///
/// # Errors
/// The kubelet's words for ports that are missing or none.
pub fn ports(query: &str) -> Result<Vec<i32>, String> {
    let mut ports = Vec::new();
    let mut named = false;
    for (_, value) in query_pairs(query).into_iter().filter(|(key, _)| key == "port") {
        named = true;
        if value.is_empty() {
            return Err("query parameter \"port\" cannot be empty".into());
        }
        for word in value.split(',') {
            let unfit =
                |why: &str| format!("unable to parse {value:?} as a port: strconv.ParseUint: parsing {word:?}: {why}");
            let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
            match word.parse::<u16>() {
                _ if !digits => return Err(unfit("invalid syntax")),
                Err(_) => return Err(unfit("value out of range")),
                Ok(0) => return Err(format!("port {value:?} must be > 0")),
                Ok(_) if ports.len() == MAX_PORTS => return Err("too many ports".into()),
                Ok(port) => ports.push(i32::from(port)),
            }
        }
    }
    if named { Ok(ports) } else { Err("query parameter \"port\" is required".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_one_switches_a_stream_on_and_a_terminal_has_no_stderr() {
        assert!(Options::of(&Form::made("output=true&command=x", "")).is_err());
        let form = Form::made("output=1&error=1&tty=1&command=a&command=b", "input=1&output=0&command=c");
        let options = Options::of(&form).unwrap();
        assert!(options.stdin && !options.stdout && options.tty && !options.stderr);
        assert_eq!(options.command, ["a", "b"]);
    }

    #[test]
    fn ports_are_numbers_and_needed() {
        assert_eq!(ports("port=80,81&port=82"), Ok(vec![80, 81, 82]));
        assert_eq!(ports(""), Err("query parameter \"port\" is required".into()));
        let why = "unable to parse \"x\" as a port: strconv.ParseUint: parsing \"x\": invalid syntax";
        assert_eq!(ports("port=x"), Err(why.into()));
        assert_eq!(ports("port=0"), Err("port \"0\" must be > 0".into()));
        assert!(ports("port=65536").is_err_and(|e| e.ends_with("value out of range")));
    }
}
