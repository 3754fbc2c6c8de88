//! Statuses as the API server answers them.

use http::Response;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};

/// The error that the API server returns instead of doing a request, or after doing it.
pub(super) fn error_response(code: u16) -> Response<Vec<u8>> {
    let mut body = failure(code, "injected by the simulation");
    let mut response = Response::builder().status(code).header(CONTENT_TYPE, "application/json");
    if matches!(code, 429 | 503) {
        response = response.header(RETRY_AFTER, "1");
        body["details"] = json!({"retryAfterSeconds": 1});
    }
    response.body(body.to_string().into_bytes()).unwrap_or_default()
}

/// A Status as the API server writes it.
pub(super) fn failure(code: u16, message: &str) -> Value {
    let status = if code == 200 { "Success" } else { "Failure" };
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": status, "message": message,
        "reason": reason(code), "code": code})
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "",
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    }
}
