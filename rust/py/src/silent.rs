//! Ends connections that never begin a request. The server bounds the wait for the rest of a head, but not for its first bytes.

use std::{collections::HashSet, fs, io, net::Shutdown, time::Duration};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::Socket;

use crate::kernel;

/// With so many bytes the server knows which HTTP it is, and has its own limits: the length of HTTP/2's preface.
const SAID_ENOUGH: u64 = 24;

/// Ends the connections at a port of ours that have said next to nothing for so long; says how many.
pub fn end(port: u16, patience: Duration) -> io::Result<usize> {
    let is_silent = |open: &kernel::Open| open.received < SAID_ENOUGH && open.quiet > patience;
    let silent: HashSet<_> =
        kernel::open_at(port)?.into_iter().filter(is_silent).map(|open| format!("socket:[{}]", open.inode)).collect();
    if silent.is_empty() {
        return Ok(0);
    }
    let myself = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut ended = 0;
    // Other workers' connections at the same port are in the list too, but no files of ours.
    for file in fs::read_dir("/proc/self/fd")?.filter_map(Result::ok) {
        let target = fs::read_link(file.path()).unwrap_or_default();
        let number = file.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(target), Some(number)) = (target.to_str(), number)
            && silent.contains(target)
            && let Ok(socket) = pidfd_getfd(&myself, number, PidfdGetfdFlags::empty())
        {
            // It may have been closed meanwhile: then there is nothing left to end.
            drop(Socket::from(socket).shutdown(Shutdown::Both));
            ended += 1;
        }
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn who_says_nothing_is_sent_away_and_who_says_something_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut silent = TcpStream::connect(address).unwrap();
        let mut talking = TcpStream::connect(address).unwrap();
        talking.write_all(&[b'x'; SAID_ENOUGH as usize]).unwrap();
        let mut accepted: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        std::thread::sleep(Duration::from_millis(150));
        assert_eq!(end(address.port(), Duration::from_secs(5)).unwrap(), 0);
        assert_eq!(end(address.port(), Duration::from_millis(50)).unwrap(), 1);
        assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
        accepted[1].write_all(b"y").unwrap();
        assert_eq!(talking.read(&mut [0; 8]).unwrap(), 1);
    }
}
