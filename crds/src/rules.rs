//! How CEL rules are put together, and those that both kinds of pools have.
//!
//! Every rule that parses one field on its own stands at that field. A rule that needs two fields first asks whether each
//! of them parses, so that one mistake is reported once and never hides another. CEL knows no order of addresses: what
//! needs one is said here for IPv4, and for IPv6 left to the operator.

use kube::core::{Message, Reason, Rule};

/// Longest text of an IP address (IPv6 with an embedded IPv4 address). A bound keeps a rule's estimated cost small.
pub(crate) const ADDRESS_LENGTH: usize = 45;
/// Longest text of a network: an address and `/128`.
pub(crate) const CIDR_LENGTH: usize = 49;
/// Longest name of a Kubernetes object.
pub(crate) const NAME_LENGTH: usize = 253;
/// Longest label key: a prefix of 253, a slash, a name of 63 characters.
pub(crate) const LABEL_KEY_LENGTH: usize = 317;
/// Longest label value.
pub(crate) const LABEL_VALUE_LENGTH: usize = 63;

/// CEL: one of the two spellings of the flag is true.
const DEFAULT_GATEWAY: &str =
    "((has(self.defaultGateway) && self.defaultGateway) || (has(self.defautGateway) && self.defautGateway))";

/// What to say when a rule fails: a text with a `%s` or `%d` for each of some CEL expressions.
///
/// This is written with CEL's `format` because the API server takes the length of `string(x)` for unbounded and then finds
/// that putting texts together with `+` costs too much.
pub(crate) fn say(text: &str, values: &[&str]) -> String {
    format!("'{text}'.format([{}])", values.join(", "))
}

/// CEL: a text as it can stand in a message. The API server shows the rule itself in place of a message that has a line break in
/// it, and a block scalar of YAML ends with one.
pub(crate) fn one_line(text: &str) -> String {
    format!(r"{text}.replace('\n', '\\n')")
}

/// A rule on a value. `message` is a CEL expression, see [`say`].
pub(crate) fn rule(expression: impl Into<String>, reason: Reason, message: impl Into<String>) -> Rule {
    Rule::new(expression).reason(reason).message(Message::Expression(message.into()))
}

/// A rule on an object whose fault lies in the field at `path` (relative, as in `.endIP`).
pub(crate) fn field_rule(
    path: &str,
    expression: impl Into<String>,
    reason: Reason,
    message: impl Into<String>,
) -> Rule {
    rule(expression, reason, message).field_path(path)
}

/// A rule that no element `x` of the optional list `self.<list>` is `bad`, asked only when `judgeable` holds. `message` is
/// evaluated with `x` as the first bad element: the API server gives no index for such rules, so it has to name the value. How
/// many more there are is added.
pub(crate) fn no_element(list: &str, judgeable: &str, bad: &str, message: &str) -> Rule {
    field_rule(
        &format!(".{list}"),
        format!("!has(self.{list}) || !({judgeable}) || !self.{list}.exists(x, {bad})"),
        Reason::FieldValueInvalid,
        more_like_this(&format!("self.{list}.filter(x, {bad}).map(x, {message})")),
    )
}

/// The first of the texts, and how many more there are.
fn more_like_this(texts: &str) -> String {
    let counted = say("%s (and %d more like this)", &[&format!("{texts}[0]"), &format!("size({texts}) - 1")]);
    format!("size({texts}) == 1 ? {texts}[0] : {counted}")
}

/// The value is an IP address.
pub(crate) fn is_address() -> Rule {
    rule("isIP(self)", Reason::FieldValueInvalid, not_an_address())
}

/// The value is an IP address or empty, which counts as absent.
pub(crate) fn is_address_or_empty() -> Rule {
    rule("self == '' || isIP(self)", Reason::FieldValueInvalid, not_an_address())
}

fn not_an_address() -> String {
    let shown = one_line("self");
    let network = say("\"%s\" is a network; write the address alone: %s", &["self", "string(cidr(self).ip())"]);
    let other = say("\"%s\" is not an IP address; write for example 192.168.0.1 or fd00::1", &[&shown]);
    format!("isCIDR(self) ? {network} : isIP(self.trim()) ? {} : {other}", has_blanks())
}

fn has_blanks() -> String {
    say("\"%s\" has blanks around it; write \"%s\"", &[&one_line("self"), "self.trim()"])
}

/// The value is a network in CIDR notation. Host bits are allowed.
pub(crate) fn is_cidr() -> Rule {
    let other = say(
        "\"%s\" is not a network in CIDR notation; write for example 192.168.0.0/16 or fd00::/48",
        &[&one_line("self")],
    );
    rule("isCIDR(self)", Reason::FieldValueInvalid, format!("isCIDR(self.trim()) ? {} : {other}", has_blanks()))
}

/// The value has no bits set behind its prefix length.
pub(crate) fn no_host_bits() -> Rule {
    rule(
        "!isCIDR(self) || cidr(self) == cidr(self).masked()",
        Reason::FieldValueInvalid,
        say("\"%s\" has host bits set; the network is %s", &["self", "string(cidr(self).masked())"]),
    )
}

/// Every exclusion lies inside the network in the field `network`.
pub(crate) fn exclusions_inside(network: &str) -> Rule {
    let outside = |end: &str| format!("(isIP(x.{end}) && !cidr(self.{network}).containsIP(x.{end}))");
    no_element(
        "exclusions",
        &format!("isCIDR(self.{network})"),
        &format!("{} || {}", outside("startIP"), outside("endIP")),
        &say(&format!("%s-%s must lie inside {network} %s"), &["x.startIP", "x.endIP", &format!("self.{network}")]),
    )
}

/// Routes are of the family of the network in the field `network`.
pub(crate) fn routes_of_family(network: &str) -> Rule {
    no_element(
        "routes",
        &format!("isCIDR(self.{network})"),
        &format!("isCIDR(x.dst) && cidr(x.dst).ip().family() != cidr(self.{network}).ip().family()"),
        &say(&format!("%s must be of the same address family as {network} %s"), &["x.dst", &format!("self.{network}")]),
    )
}

/// The flag for a default route needs the field `gateway`, which is set when `is_set` holds.
pub(crate) fn default_gateway_needs(gateway: &str, is_set: &str) -> Rule {
    field_rule(
        ".defaultGateway",
        format!("!{DEFAULT_GATEWAY} || {is_set}"),
        Reason::FieldValueInvalid,
        say(&format!("a default gateway needs {gateway} to be set"), &[]),
    )
}

/// Routes need the field `gateway`, which is set when `is_set` holds.
pub(crate) fn routes_need(gateway: &str, is_set: &str) -> Rule {
    field_rule(
        ".routes",
        format!("!has(self.routes) || size(self.routes) == 0 || {is_set}"),
        Reason::FieldValueInvalid,
        say(&format!("routes go through the gateway: they need {gateway} to be set"), &[]),
    )
}

/// No default route is written out beside the flag that adds one.
pub(crate) fn one_default_route() -> Rule {
    no_element(
        "routes",
        DEFAULT_GATEWAY,
        "isCIDR(x.dst) && cidr(x.dst).prefixLength() == 0",
        &say("%s is the default route, which defaultGateway: true adds already; remove one of the two", &["x.dst"]),
    )
}

/// CEL: how many bits of the network text `network` number hosts, if networks are `prefix_length` bits long.
pub(crate) fn host_bits(network: &str, prefix_length: &str) -> String {
    format!("((cidr({network}).ip().family() == 4 ? 32 : 128) - {prefix_length})")
}

/// CEL: two to the power of `exponent`, which the rule must have bounded to 0..=62. CEL itself has neither powers nor shifts.
pub(crate) fn power_of_two(exponent: &str) -> String {
    let powers: Vec<String> = (0..=62).map(|bits| (1_u64 << bits).to_string()).collect();
    format!("[{}][{exponent}]", powers.join(", "))
}

/// CEL: the IPv4 address text in `field` as a number.
pub(crate) fn ipv4_number(field: &str) -> String {
    let octet = |index: u32, weight: u32| format!("int({field}.split('.')[{index}]) * {weight}");
    format!("({} + {} + {} + {})", octet(0, 1 << 24), octet(1, 1 << 16), octet(2, 1 << 8), octet(3, 1))
}
