//! Shutdown of this process's own sockets by file descriptor, from outside the code that serves them.

use std::{fs, io, net::Shutdown};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::Socket;

/// Shuts down the matching sockets of this process and returns how many there were. Scans all open files: `may_be`
/// filters by link text (`socket:[inode]`), then `should_shut_down` decides on the socket itself.
pub fn shut_down_matching(
    may_be: impl Fn(&str) -> bool,
    should_shut_down: impl Fn(&Socket) -> bool,
) -> io::Result<usize> {
    let myself = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut ended = 0;
    for file in fs::read_dir("/proc/self/fd")?.filter_map(Result::ok) {
        let link = fs::read_link(file.path()).unwrap_or_default();
        let number = file.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(link), Some(number)) = (link.to_str(), number)
            && may_be(link)
            && let Ok(descriptor) = pidfd_getfd(&myself, number, PidfdGetfdFlags::empty())
        {
            let socket = Socket::from(descriptor);
            if should_shut_down(&socket) {
                // The socket may already be closed; then there is nothing to shut down.
                drop(socket.shutdown(Shutdown::Both));
                ended += 1;
            }
        }
    }
    Ok(ended)
}
