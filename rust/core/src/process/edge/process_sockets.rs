//! This process's own sockets, reached from outside of whoever serves them.

use std::{fs, io, net::Shutdown};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::Socket;

/// Ends those of its sockets that are meant, and says how many. All its open files are looked at: first at what their links say
/// (`socket:[inode]`), and where that may be one of them `look` is shown the socket, and says whether it is.
pub fn shut_down_matching(may_be: impl Fn(&str) -> bool, look: impl Fn(&Socket) -> bool) -> io::Result<usize> {
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
            if look(&socket) {
                // It may have been closed meanwhile: then there is nothing left to end.
                drop(socket.shutdown(Shutdown::Both));
                ended += 1;
            }
        }
    }
    Ok(ended)
}
