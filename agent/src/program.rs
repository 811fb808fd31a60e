//! A program that is asked once for credentials: maybe a request on its standard input, the answer on its standard output.

use std::io;
use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// An answer is some credentials; what is longer is none.
const LONGEST: u64 = 1 << 20;

/// Why a program came to no end of its own.
#[derive(Debug)]
pub enum ProgramError {
    /// It is not there, or is none.
    NotStarted(io::Error),
    /// It cannot be heard.
    Lost(io::Error),
}

/// A program that has ended.
pub struct Ended {
    pub status: ExitStatus,
    /// Its standard output; maybe a secret.
    pub said: Vec<u8>,
    /// Its standard error, where the command wants it.
    pub complaint: Vec<u8>,
}

/// Runs a program to its end, or until the future is dropped. Standard input is the command's, or else the request.
///
/// # Errors
/// See [`ProgramError`]. One that ends badly is none.
pub async fn run(mut command: Command, request: Option<String>) -> Result<Ended, ProgramError> {
    if request.is_some() {
        command.stdin(Stdio::piped());
    }
    let spawned = command.stdout(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = spawned.map_err(ProgramError::NotStarted)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let tell = async move {
        if let (Some(mut stdin), Some(request)) = (stdin, request) {
            // A program that knows its answer need not read.
            let _ = stdin.write_all(request.as_bytes()).await;
        }
    };
    let ((), said, complaint) = tokio::join!(tell, whole(stdout), whole(stderr));
    let status = child.wait().await.map_err(ProgramError::Lost)?;
    Ok(Ended { status, said: said.map_err(ProgramError::Lost)?, complaint: complaint.unwrap_or_default() })
}

/// What comes out of a pipe. One that says too much finds it closed.
async fn whole(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(LONGEST).read_to_end(&mut text).await?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]).stdin(Stdio::null());
        command
    }

    #[tokio::test]
    async fn a_program_is_told_and_heard() {
        let mut command = script("cat; echo bad >&2; exit 3");
        command.stderr(Stdio::piped());
        let ended = run(command, Some("asked".into())).await.expect("ended");
        assert_eq!(
            (ended.status.code(), &ended.said[..], &ended.complaint[..]),
            (Some(3), &b"asked"[..], &b"bad\n"[..])
        );
        let silent = run(script("cat"), None).await.expect("ended");
        assert!(silent.status.success() && silent.said.is_empty() && silent.complaint.is_empty());
        let missing = run(Command::new("no-such-program"), None).await;
        assert!(matches!(missing, Err(ProgramError::NotStarted(e)) if e.kind() == io::ErrorKind::NotFound));
    }

    /// It was waited for until its time was over.
    #[tokio::test]
    async fn a_program_that_says_too_much_ends() {
        for request in [None, Some("x".repeat(1 << 20))] {
            let ended = run(script("exec cat /dev/zero"), request).await.expect("ended");
            assert!(!ended.status.success());
            assert_eq!(u64::try_from(ended.said.len()), Ok(LONGEST));
        }
    }
}
