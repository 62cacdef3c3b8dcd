//! Which addresses may be dialled: decided on what a name resolved to, in the dialer, for every request alike.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hosts that an operator trusts: themselves and their subdomains may resolve to private addresses.
#[derive(Debug, Clone, Default)]
pub struct Trusted(Vec<String>);

/// Cloud metadata services: never dialled, whatever is trusted.
const METADATA: &[IpAddr] = &[
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

impl Trusted {
    pub fn new(hosts: &[String]) -> Self {
        let lowered = hosts.iter().map(|host| host.trim().trim_start_matches("*.").to_ascii_lowercase());
        Self(lowered.filter(|host| !host.is_empty()).collect())
    }

    fn holds(&self, host: &str) -> bool {
        // An address has no subdomains.
        let is_name = host.parse::<IpAddr>().is_err();
        self.0.iter().any(|trusted| {
            host == trusted || is_name && host.strip_suffix(trusted.as_str()).is_some_and(|rest| rest.ends_with('.'))
        })
    }

    /// Whether this address of this host may be dialled; otherwise why not.
    pub fn allows(&self, host: &str, address: IpAddr) -> Result<(), &'static str> {
        let address = unwrapped(address);
        if METADATA.contains(&address) {
            return Err("it is a cloud metadata address");
        }
        if is_public(address) || self.holds(&host.to_ascii_lowercase()) {
            return Ok(());
        }
        Err("it is a private or reserved address; list the host in TRUSTED_CUSTOM_HOSTS to allow it")
    }
}

/// An IPv4 address that hides in an IPv6 one (mapped, compatible, 6to4, NAT64), as itself.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let parts = v6.segments();
    let [.., high, low] = parts;
    let tail = || IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match parts {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => tail(),
        [0, 0, 0, 0, 0, 0, ..] if !v6.is_loopback() && !v6.is_unspecified() => tail(),
        [0x2002, a, b, ..] => IpAddr::V4(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b))),
        _ => address,
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            // Global unicast is 2000::/3; Teredo, documentation and ORCHID within it are not.
            first & 0xe000 == 0x2000
                && !(first == 0x2001 && (v6.segments()[1] < 0x200 || v6.segments()[1] == 0xdb8))
                && first != 0x3fff
        }
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

    fn allowed(trusted: &[&str], host: &str, address: &str) -> bool {
        let hosts: Vec<_> = trusted.iter().map(ToString::to_string).collect();
        Trusted::new(&hosts).allows(host, address.parse().unwrap()).is_ok()
    }

    #[test]
    fn public_addresses_are_dialled() {
        for address in ["1.1.1.1", "104.18.7.192", "2606:4700::6810:1"] {
            assert!(allowed(&[], "api.example.com", address), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_dialled_only_for_trusted_hosts_and_their_subdomains() {
        for address in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
            "0.0.0.0",
            "fe80::1",
        ] {
            assert!(!allowed(&[], "llm.corp.example", address), "{address}");
            assert!(allowed(&["corp.example"], "llm.corp.example", address), "{address}");
            assert!(!allowed(&["corp.example"], "evilcorp.example", address), "{address}");
        }
    }

    #[test]
    fn metadata_addresses_are_never_dialled() {
        for address in ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "100.100.100.200"] {
            assert!(!allowed(&["meta.example"], "meta.example", address), "{address}");
        }
    }
}
