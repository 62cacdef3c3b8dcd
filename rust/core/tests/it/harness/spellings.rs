//! All known spellings of addresses that must not be dialled, and names that resolve to such addresses.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Returns loopback, private, reserved and metadata addresses, and random ones from a fixed seed.
fn forbidden_addresses() -> Vec<Ipv4Addr> {
    let private_addresses = "127.0.0.1 127.1.2.3 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.254 172.16.0.1 172.31.255.254 192.168.0.1 \
        192.168.255.254 100.64.0.1 100.127.255.254 169.254.0.1 169.254.169.254 169.254.170.2 169.254.170.23 \
        100.100.100.200 168.63.129.16 192.0.0.192 192.0.0.1 192.0.2.1 198.51.100.1 203.0.113.1 198.18.0.1 \
        198.19.255.254 192.88.99.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255";
    let mut chance = fastrand::Rng::with_seed(7);
    let mut byte = || chance.u8(1..=254);
    let more = (0..20).map(|index| match index % 4 {
        0 => Ipv4Addr::new(127, byte(), byte(), byte()),
        1 => Ipv4Addr::new(10, byte(), byte(), byte()),
        2 => Ipv4Addr::new(192, 168, byte(), byte()),
        _ => Ipv4Addr::new(172, 16 + byte() % 16, byte(), byte()),
    });
    let more: Vec<_> = more.collect();
    private_addresses.split_whitespace().map(|text| text.parse().unwrap()).chain(more).collect()
}

/// Returns the spellings that some URL parser accepts for an address, without duplicates.
fn address_spellings(address: Ipv4Addr) -> Vec<String> {
    let mut all =
        [legacy_spellings(address), obfuscated_spellings(&address.to_string()), ipv6_spellings(address)].concat();
    all.sort();
    all.dedup();
    all
}

/// Numeric spellings that resolvers have accepted since the 1980s, and those for parsers that let numbers overflow.
fn legacy_spellings(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let complete = u32::from(address);
    vec![
        address.to_string(),
        format!("{complete}"),
        format!("{complete:#x}"),
        format!("0X{complete:08X}"),
        format!("0{complete:o}"),
        format!("0000{complete:o}"),
        format!("{a:#x}.{b:#x}.{c:#x}.{d:#x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a:#x}.0{b:o}.{c}.{d}"),
        format!("{a}.{}", complete & 0xff_ffff),
        format!("{a}.{b}.{}", complete & 0xffff),
        format!("{a:#x}.{b}.{:#x}", complete & 0xffff),
        format!("{}", u64::from(complete) + (1 << 32)),
        format!("{:#x}", u64::from(complete) + (1 << 32)),
        format!("{}.{b}.{c}.{d}", u16::from(a) + 256),
        format!("{a}.{b}.{c}.{}", u16::from(d) + 256),
    ]
}

/// Spellings with characters that a parser may drop, decode, fold or split at.
fn obfuscated_spellings(dotted: &str) -> Vec<String> {
    let full_width: String = dotted.chars().map(|digit| char::from_u32(digit as u32 + 0xfee0).unwrap()).collect();
    let encoded = dotted.bytes().fold(String::new(), |mut text, byte| {
        write!(text, "%{byte:02x}").unwrap();
        text
    });
    let mut all = vec![
        full_width,
        encoded,
        dotted.replace('.', "\u{3002}"),
        dotted.replace('.', "\u{ff0e}"),
        dotted.replace('1', "\u{2460}"),
        dotted.replace('.', "%2e"),
        dotted.replace('.', ".\u{200b}"),
        format!("llm.{}.sslip.io", dotted.replace('.', "-")),
    ];
    let endings = [
        ".",
        "..",
        "%00",
        "\u{ad}",
        " .example.com",
        "\\@api.openai.com",
        "\\.example.com",
        "#@api.openai.com",
        "?@api.openai.com",
        "/@api.openai.com",
        ".nip.io",
        ".xip.io",
        "\tx",
    ];
    all.extend(endings.map(|ending| format!("{dotted}{ending}")));
    let beginnings =
        ["api.openai.com@", "api.openai.com:443@", "api.openai.com%40", "api.openai.com\\@", "\t", "\u{feff}"];
    all.extend(beginnings.map(|beginning| format!("{beginning}{dotted}")));
    all
}

/// Spellings within an IPv6 address: mapped, translated, compatible, 6to4, NAT64, Teredo, and with zones.
fn ipv6_spellings(address: Ipv4Addr) -> Vec<String> {
    let complete = u32::from(address);
    let (high, low) = (complete >> 16, complete & 0xffff);
    let mapped = Ipv6Addr::from((0xffff_u128 << 32) | u128::from(complete));
    vec![
        format!("[{mapped}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[0:0:0:0:0:FFFF:{address}]"),
        format!("[::ffff:0:{address}]"),
        format!("[::{address}]"),
        format!("[2002:{high:x}:{low:x}::]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[64:ff9b::{address}]"),
        format!("[64:ff9b:1::{address}]"),
        format!("[2001:0:{high:x}:{low:x}::]"),
        format!("[2001:0:808:808::{:x}:{:x}]", high ^ 0xffff, low ^ 0xffff),
        format!("[{mapped}%25lo]"),
        format!("[{mapped}%lo]"),
    ]
}

const FORBIDDEN_HOSTS: &str = "localhost LOCALHOST localhost. localhost.localdomain a.localhost ip6-localhost.local printer.local \
    host.docker.internal state.docker.internal llm.internal llm.intranet llm.lan llm.home llm.home.arpa llm.corp \
    llm.test llm.invalid llm.onion metadata metadata.google.internal METADATA.google.internal x.metadata.google.internal \
    metadata.goog metadata.azure.com instance-data instance-data.ec2.internal metadata.tencentyun.com kubernetes \
    kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster.local llm.svc.cluster.local \
    localtest.me a.localtest.me lvh.me a.b.lvh.me vcap.me xn--lclhst-3nf5a.example a.b.c.d.e.f.g.h.i.j.example \
    loc\u{430}lhost \u{24db}ocalhost [::1] [::] [0:0:0:0:0:0:0:1] [0000::0001] [::1%25lo] [fe80::1] [fe80::1%25eth0] [fc00::1] \
    [fd12:3456::1] [fd00:ec2::254] [fd20:ce::254] [ff02::1] [2001:db8::1] [2001:2::1] [2001:10::1] [3fff::1] [100::1] \
    [5f00::1] [fec0::1] [] [::1 ::1 1.2.3.4.5 0 0x 0x0 00 .127.0.0.1 -127.0.0.1 127.0.0.1- +127.0.0.1";

const FORBIDDEN_URLS: &str = "ftp://127.0.0.1 file:///etc/passwd gopher://127.0.0.1:70 unix:/run/control.sock javascript:alert(1) \
    data:text/plain,x dict://127.0.0.1:11211 ldap://127.0.0.1 ws://127.0.0.1 //127.0.0.1 /etc/passwd 127.0.0.1 \
    http:127.0.0.1 http:/127.0.0.1 http:///127.0.0.1 http:\\\\127.0.0.1 https://user:secret@api.openai.com \
    https://api.openai.com# https://api.openai.com? https://api.openai.com:0 https://api.openai.com:99999 \
    https://api.openai.com:22 https://api.openai.com:25 https://api.openai.com:445 https://api.openai.com:3306 \
    https://api.openai.com:5432 https://api.openai.com:6379 https://api.openai.com:6443 https://api.openai.com:9200 \
    https://api.openai.com:27017 https://api.openai.com/../.. https://api.openai.com/%2e%2e/x";

/// Returns more than two thousand URLs that must not be dialled. Those of this machine use `port`.
pub fn forbidden_urls(port: u16) -> Vec<String> {
    let hosts = forbidden_addresses()
        .into_iter()
        .flat_map(address_spellings)
        .chain(FORBIDDEN_HOSTS.split_whitespace().map(ToOwned::to_owned));
    let url = |(index, host): (usize, String)| {
        let path = ["", "/", "/v1", "/v1/"][index % 4];
        // If anything follows the host, the port goes in front of it.
        match host.find(['/', '?', '#']) {
            Some(at) => format!("http://{}:{port}{}{path}", &host[..at], &host[at..]),
            None => format!("http://{host}:{port}{path}"),
        }
    };
    let urls = hosts.enumerate().map(url).chain(FORBIDDEN_URLS.split_whitespace().map(ToOwned::to_owned));
    let too_long = format!("http://127.0.0.1:{port}/{}", "x".repeat(2048));
    urls.chain([too_long]).collect()
}
