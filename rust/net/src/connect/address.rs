//! Rules for which hosts, ports and IP addresses may be dialled. Every request passes the same checks, which prevent
//! SSRF.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Domain names that are blocked with their subdomains, grouped by reason. Trust by the operator does not unblock them.
const BLOCKED_NAMES: &[(&str, &[&str])] = &[
    (
        "it is a cloud metadata service",
        &[
            "metadata",
            "metadata.google.internal",
            "metadata.google",
            "metadata.goog",
            "metadata.internal",
            "metadata.azure.com",
            "metadata.azure.internal",
            "metadata.packet.net",
            "metadata.platformequinix.com",
            "metadata.tencentyun.com",
            "metadata.oraclecloud.com",
            "instance-data",
            "instance-data.ec2.internal",
            "rancher-metadata",
        ],
    ),
    (
        "it is the API of a Kubernetes cluster",
        &[
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "kubernetes.docker.internal",
        ],
    ),
    (
        "its subdomains resolve to any address that they contain",
        &[
            "nip.io",
            "sslip.io",
            "xip.io",
            "xip.name",
            "backname.io",
            "localtest.me",
            "lvh.me",
            "vcap.me",
            "fuf.me",
            "lacolhost.com",
            "localho.st",
            "local.gd",
            "traefik.me",
            "1u.ms",
            "rbndr.us",
        ],
    ),
];

/// Names of private networks. They and their subdomains are allowed only if the operator trusts them.
const PRIVATE_NAMES: &[&str] = &[
    "local",
    "localdomain",
    "localhost",
    "internal",
    "intranet",
    "private",
    "lan",
    "home",
    "home.arpa",
    "corp",
    "test",
    "invalid",
    "onion",
];

/// Blocked ports of services other than HTTP APIs, such as shells, mail, directories, databases, queues and clusters.
const BLOCKED_PORTS: &[u16] = &[
    7, 9, 19, 21, 22, 23, 25, 53, 69, 110, 111, 135, 137, 139, 143, 161, 389, 445, 465, 512, 513, 514, 587, 636, 873,
    993, 995, 1433, 1521, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5432, 5672, 5900, 5984, 5985, 5986,
    6379, 6443, 6667, 9042, 9092, 9160, 9200, 9300, 10250, 10255, 10256, 11211, 15672, 25672, 26379, 27017, 27018,
    27019, 28017,
];

/// Kind of host in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKind {
    Name,
    Address(IpAddr),
    /// An address in a form that URL parsers read differently, or an IPv4 address embedded in an IPv6 one.
    Ambiguous(IpAddr),
}

impl HostKind {
    /// Classifies the host of a URL, with an IPv6 address in brackets. Returns an error if it looks like an address but
    /// is invalid.
    pub fn classify(host: &str) -> Result<Self, &'static str> {
        if let Some(inner) = host.strip_prefix('[') {
            let address = inner.strip_suffix(']').and_then(|text| text.parse::<Ipv6Addr>().ok());
            let address = address.ok_or("is not an IPv6 address")?;
            let is_plain = embedded_ipv4(address).next().is_none();
            return Ok(if is_plain { Self::Address(address.into()) } else { Self::Ambiguous(address.into()) });
        }
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        let last = host.rsplit('.').next().unwrap_or_default();
        if !is_numeric(last) {
            return Ok(Self::Name);
        }
        parse_legacy_ipv4(host).map(|address| Self::Ambiguous(address.into())).ok_or("is not an IPv4 address")
    }

    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Name => None,
            Self::Address(address) | Self::Ambiguous(address) => Some(address),
        }
    }
}

fn is_numeric(label: &str) -> bool {
    let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    let is_decimal = !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit());
    is_decimal || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Parses an IPv4 address as `inet_aton` does: one to four decimal, octal or hexadecimal parts, the last of which fills
/// the remaining bytes.
fn parse_legacy_ipv4(host: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u32> = host.split('.').map(parse_ipv4_part).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 0xff) {
        return None;
    }
    let bits = 8 * (4 - first.len() as u32);
    if bits < 32 && *last >> bits != 0 {
        return None;
    }
    let high = first.iter().enumerate().map(|(index, part)| part << (24 - 8 * index)).sum::<u32>();
    Some(Ipv4Addr::from(high | last))
}

fn parse_ipv4_part(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [] => return None,
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // `from_str_radix` accepts a sign, so digits are checked first.
    let is_digits = digits.bytes().all(|byte| char::from(byte).is_digit(radix));
    match digits {
        "" => Some(0),
        _ if is_digits => u32::from_str_radix(digits, radix).ok(),
        _ => None,
    }
}

/// Rejects destinations that are blocked even if the operator trusts them: names, ports and metadata services.
pub fn reject_blocked(host: &str, port: u16) -> Result<(), &'static str> {
    if BLOCKED_PORTS.contains(&port) {
        return Err("its port belongs to a service without an HTTP API");
    }
    if let Some((reason, _)) =
        BLOCKED_NAMES.iter().find(|(_, names)| names.iter().any(|name| is_same_or_subdomain(host, name)))
    {
        return Err(reason);
    }
    HostKind::classify(host)?.address().map_or(Ok(()), reject_metadata_address)
}

fn reject_metadata_address(address: IpAddr) -> Result<(), &'static str> {
    if is_metadata(address) { Err("it is a cloud metadata address") } else { Ok(()) }
}

/// Returns true if `host` is `name` or a subdomain of it.
fn is_same_or_subdomain(host: &str, name: &str) -> bool {
    host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Hosts that the operator trusts. They and their subdomains may be private.
#[derive(Debug, Clone, Default)]
pub struct TrustedHosts(Vec<String>);

impl TrustedHosts {
    pub fn new(hosts: &[String]) -> Self {
        let plain = |host: &String| {
            let host = host.trim().trim_start_matches("*.").trim_matches(['[', ']']).to_ascii_lowercase();
            // An address has several textual forms, so it is normalised.
            host.parse::<IpAddr>().map_or(host, |address| address.to_string())
        };
        Self(hosts.iter().map(plain).filter(|host| !host.is_empty()).collect())
    }

    fn contains(&self, host: &str, kind: HostKind) -> bool {
        match kind.address() {
            None => self.0.iter().any(|trusted| is_same_or_subdomain(host, trusted)),
            Some(address) => {
                let plain = address.to_string();
                self.0.iter().any(|trusted| *trusted == plain || trusted == host)
            }
        }
    }

    /// Returns true if the operator listed this name or a parent domain.
    pub fn contains_name(&self, host: &str) -> bool {
        matches!(HostKind::classify(host), Ok(HostKind::Name)) && self.contains(host, HostKind::Name)
    }

    /// Returns true if the operator listed this name or address, or a parent domain.
    pub fn contains_host(&self, host: &str) -> bool {
        HostKind::classify(host).is_ok_and(|kind| self.contains(host, kind))
    }

    /// Checks whether a host may be resolved and dialled, judging by its name alone. Returns the reason if not.
    pub fn check_host(&self, host: &str) -> Result<(), &'static str> {
        let kind = HostKind::classify(host)?;
        let reason = match kind {
            HostKind::Name if PRIVATE_NAMES.iter().any(|name| is_same_or_subdomain(host, name)) => {
                "its name is reserved for private networks; list it in TRUSTED_CUSTOM_HOSTS to allow it"
            }
            HostKind::Ambiguous(_) => {
                "it is an address in an unusual spelling; list the address in TRUSTED_CUSTOM_HOSTS to allow it"
            }
            HostKind::Address(address) => return self.check_address(host, address),
            HostKind::Name => return Ok(()),
        };
        if self.contains(host, kind) { Ok(()) } else { Err(reason) }
    }

    /// Checks whether a resolved address of a host may be dialled. Returns the reason if not.
    pub fn check_address(&self, host: &str, address: IpAddr) -> Result<(), &'static str> {
        reject_metadata_address(address)?;
        if is_public(address) || self.contains(host, HostKind::classify(host)?) {
            return Ok(());
        }
        Err("it is a private or reserved address; list the host in TRUSTED_CUSTOM_HOSTS to allow it")
    }
}

/// Checks a destination that a tenant chose, for clients outside of the engine. Checks the host, the port and all
/// addresses of the host. One forbidden address rejects the destination. Returns the reason if it is rejected.
pub fn check_destination(trusted: &[String], host: &str, port: u16, addresses: &[IpAddr]) -> Result<(), &'static str> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let trusted = TrustedHosts::new(trusted);
    reject_blocked(&host, port)?;
    trusted.check_host(&host)?;
    addresses.iter().try_for_each(|address| trusted.check_address(&host, *address))
}

/// Returns the IPv4 addresses embedded in an IPv6 one: mapped, compatible, 6to4, NAT64, and Teredo (server and client).
fn embedded_ipv4(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    let embedded = match address.segments() {
        _ if address.is_loopback() || address.is_unspecified() => [None, None],
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => [v4(high, low), None],
        // RFC 6052 §2.2: with a 48-bit prefix the address is split around the ninth byte.
        [0x64, 0xff9b, 1, first, second, third, high, low] => [v4(high, low), v4(first, (second << 8) | (third >> 8))],
        [0x2001, 0, server_high, server_low, _, _, high, low] => [v4(server_high, server_low), v4(!high, !low)],
        _ => [None, None],
    };
    embedded.into_iter().flatten()
}

fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_metadata_v4(v4),
        IpAddr::V6(v6) => {
            let [a, b, rest @ ..] = v6.segments();
            let is_own = (a, b) == (0xfd00, 0xec2) && rest[..4] == [0; 4]
                || (a, b) == (0xfd20, 0xce) && rest == [0, 0, 0, 0, 0, 0x254];
            is_own || embedded_ipv4(v6).any(is_metadata_v4)
        }
    }
}

fn is_metadata_v4(address: Ipv4Addr) -> bool {
    matches!(
        address.octets(),
        [169, 254, 169, _] | [169, 254, 170, 2 | 23] | [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192]
    )
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match v6.segments() {
            // With DNS64 every IPv4-only provider resolves to this prefix, so the embedded address is checked.
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => embedded_ipv4(v6).all(is_public_v4),
            // Global unicast is 2000::/3, except Teredo, ORCHID, benchmarking, documentation and 6to4 addresses.
            [first, second, ..] => {
                first & 0xe000 == 0x2000
                    && !(first == 0x2001 && (second < 0x200 || second == 0xdb8))
                    && !matches!(first, 0x2002 | 0x3fff)
            }
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (b == 18 || b == 19))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted_hosts(hosts: &[&str]) -> TrustedHosts {
        TrustedHosts::new(&hosts.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn is_allowed(trusted: &[&str], host: &str, address: &str) -> bool {
        trusted_hosts(trusted).check_address(host, address.parse().unwrap()).is_ok()
    }

    #[test]
    fn allows_public_addresses() {
        for address in ["1.1.1.1", "104.18.7.192", "2606:4700::6810:1", "64:ff9b::101:101"] {
            assert!(is_allowed(&[], "api.example.com", address), "{address}");
        }
    }

    #[test]
    fn allows_private_addresses_only_for_trusted_hosts_and_their_subdomains() {
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "::1.1.1.1",
            "2002:101:101::",
            "2001:0:101:101::",
            "64:ff9b::7f00:1",
            "64:ff9b:1::101:101",
            "0.0.0.0",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_allowed(&[], "llm.corp.example", address), "{address}");
            for trusted in ["corp.example", "*.corp.example", " CORP.example ", "llm.corp.example"] {
                assert!(is_allowed(&[trusted], "llm.corp.example", address), "{address}");
            }
            assert!(!is_allowed(&["corp.example"], "evilcorp.example", address), "{address}");
        }
    }

    #[test]
    fn never_allows_metadata_addresses() {
        for address in [
            "169.254.169.254",
            "169.254.169.1",
            "169.254.170.23",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd00:ec2::1",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::",
            "2001:0:101:101:0:0:5601:5601",
        ] {
            assert!(!is_allowed(&["meta.example"], "meta.example", address), "{address}");
        }
    }

    #[test]
    fn detects_legacy_spellings_of_an_address() {
        for host in ["127.1", "127.0.1", "2130706433", "0x7f000001", "0X7F.0.0.1", "0177.0.0.1", "017700000001"] {
            assert_eq!(HostKind::classify(host), Ok(HostKind::Ambiguous([127, 0, 0, 1].into())), "{host}");
            assert!(
                trusted_hosts(&[]).check_host(host).is_err() && trusted_hosts(&["127.0.0.1"]).check_host(host).is_ok()
            );
        }
        for host in ["256.1.1.1", "1.2.3.4.5", "4294967296", "1.2.3.256", "1..1", "089.1.1.1", "0x1ffffffff", "a.b.1"] {
            assert!(HostKind::classify(host).is_err(), "{host}");
        }
        assert_eq!(HostKind::classify("8.8.8.8"), Ok(HostKind::Address([8, 8, 8, 8].into())));
        assert_eq!(HostKind::classify("1password.com"), Ok(HostKind::Name));
    }

    #[test]
    fn private_names_need_trust_and_blocked_names_are_never_allowed() {
        for host in ["localhost", "printer.local", "host.docker.internal", "x.home.arpa", "a.b.corp", "x.onion"] {
            assert!(reject_blocked(host, 443).is_ok() && trusted_hosts(&[]).check_host(host).is_err(), "{host}");
            assert!(trusted_hosts(&[host]).check_host(host).is_ok(), "{host}");
        }
        for host in ["metadata.google.internal", "kubernetes.default.svc", "10.0.0.1.nip.io", "app.lvh.me", "metadata"]
        {
            assert!(reject_blocked(host, 443).is_err(), "{host}");
        }
        for host in ["api.openai.com", "mylocal.example", "metadata.example.com", "notnip.io"] {
            assert!(reject_blocked(host, 443).is_ok() && trusted_hosts(&[]).check_host(host).is_ok(), "{host}");
        }
    }

    #[test]
    fn never_allows_ports_of_other_services() {
        for port in [22, 25, 445, 3306, 5432, 6379, 6443, 9200, 27017] {
            assert!(reject_blocked("api.example.com", port).is_err(), "{port}");
        }
        for port in [80, 443, 3000, 5000, 8000, 8080, 8443, 11434] {
            assert!(reject_blocked("api.example.com", port).is_ok(), "{port}");
        }
    }
}
