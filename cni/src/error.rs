//! What a runtime is told when a call fails: the code, the message, and the JSON around them.
//!
//! [`Code`] is the one table of error codes; no other module writes a number. Codes below 100 are the specification's,
//! those from 100 on are ours.

use std::fmt;
use std::time::Duration;

use ipam_node_api::client::ConnectError;
use serde::Serialize;
use tonic::Status;

use crate::Command;
use crate::mistake::Mistakes;

/// Why a call failed, as a number for the runtime (CNI specification 1.1, "Error").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Code {
    /// The configuration's `cniVersion` is not spoken, or the command does not exist in it.
    IncompatibleVersion = 1,
    /// A `CNI_*` variable is missing or malformed; the message names each.
    InvalidEnvironment = 4,
    /// Standard input or the conf file cannot be read.
    Io = 5,
    /// Standard input or the conf file is not a JSON object.
    Decoding = 6,
    /// A field of the configuration has a wrong type or value, or the agent refused what it asks for.
    InvalidConfig = 7,
    /// Nothing is wrong with the call, and the same one may succeed later: the agent is away, not ready or slow, or no
    /// address is free at the moment. (An address asked for is mostly taken by the pod that is about to leave it.)
    TryAgainLater = 11,
    /// STATUS: the agent is away or not ready, so ADD would fail. Existing containers keep their addresses without the
    /// agent, which is why the specification's 51 (limited connectivity) is never reported.
    NotAvailable = 50,
    /// The agent failed, or its answer makes no sense.
    AgentFailure = 100,
    /// ADD: this node has no such pool, or no block of it.
    UnknownPool = 101,
    /// CHECK: the interface does not hold the addresses of `prevResult`.
    NotReserved = 102,
    /// ADD: the interface already holds something else than what is asked for.
    HoldsOther = 103,
}

/// The failure of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniError {
    /// What kind.
    pub code: Code,
    /// What happened, naming fields and values; one line.
    pub message: String,
}

impl CniError {
    /// A failure of kind `code`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// All mistakes of an input in one failure.
    pub(crate) fn of_mistakes(code: Code, mistakes: &Mistakes) -> Self {
        Self::new(code, mistakes.to_string())
    }

    /// The agent could not be reached.
    pub(crate) fn unreachable(error: &ConnectError) -> Self {
        Self::new(Code::TryAgainLater, format!("{error}; is the node agent (ipam-node) running on this node?"))
    }

    /// The same failure, of a call that ended because its time was up.
    pub(crate) fn after(self, timeout: Duration) -> Self {
        let message =
            format!("{}; gave up after the {} s of daemonCallTimeoutSeconds", self.message, timeout.as_secs());
        Self { message, ..self }
    }

    /// The agent answered `status` to `command`.
    pub(crate) fn refused(command: Command, status: &Status) -> Self {
        use tonic::Code as Grpc;
        let (code, what) = match (status.code(), command) {
            (Grpc::Unavailable | Grpc::DeadlineExceeded | Grpc::Cancelled, _) => {
                (Code::TryAgainLater, "the agent is not available")
            }
            (Grpc::ResourceExhausted, _) => (Code::TryAgainLater, "no address to give"),
            (Grpc::InvalidArgument, _) => (Code::InvalidConfig, "the agent refused the request"),
            (Grpc::NotFound, Command::Check) => (Code::NotReserved, "not reserved for this interface"),
            (Grpc::NotFound, _) => (Code::UnknownPool, "the agent of this node does not know the pool"),
            (Grpc::AlreadyExists, _) => (Code::HoldsOther, "the interface already holds something else"),
            _ => (Code::AgentFailure, "the agent failed"),
        };
        Self::new(code, format!("{what}: {} ({:?})", status.message(), status.code()))
    }

    /// The error as the specification wants it on standard output.
    pub(crate) fn to_json(&self, cni_version: &str) -> String {
        let document = Document { cni_version, code: self.code as u16, msg: &self.message };
        // Strings and a number always serialize; the fallback keeps this free of a panic.
        serde_json::to_string(&document).unwrap_or_else(|_| r#"{"code":100,"msg":"internal error"}"#.to_owned())
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code as u16)
    }
}

impl std::error::Error for CniError {}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "cniVersion")]
    cni_version: &'a str,
    code: u16,
    msg: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_of_the_agent_has_its_code() {
        use tonic::Code as Grpc;
        for (status, command, code) in [
            (Grpc::Unavailable, Command::Add, 11),
            (Grpc::Unavailable, Command::Del, 11),
            (Grpc::DeadlineExceeded, Command::Del, 11),
            (Grpc::Cancelled, Command::Gc, 11),
            (Grpc::ResourceExhausted, Command::Add, 11),
            (Grpc::InvalidArgument, Command::Add, 7),
            (Grpc::NotFound, Command::Add, 101),
            (Grpc::NotFound, Command::Check, 102),
            (Grpc::AlreadyExists, Command::Add, 103),
            (Grpc::Internal, Command::Add, 100),
            (Grpc::Unknown, Command::Del, 100),
            (Grpc::Unimplemented, Command::Add, 100),
        ] {
            let error = CniError::refused(command, &Status::new(status, "because"));
            assert_eq!(error.code as u16, code, "{status:?} {command:?}");
            assert!(error.message.contains("because"), "{error}");
        }
    }

    #[test]
    fn the_json_carries_version_code_and_message_in_that_order() {
        let error = CniError::new(Code::InvalidConfig, "ipam.poolType: \"x\"");
        assert_eq!(error.to_json("0.4.0"), r#"{"cniVersion":"0.4.0","code":7,"msg":"ipam.poolType: \"x\""}"#);
    }
}
