//! Bodies that are held whole, within the room that all of them share.

use bytes::Bytes;

use super::Body;
use crate::{
    error::{Error, Result},
    state::shared::memory_budget::{Room, Share, Stored},
};

/// Most bodies are smaller, and cost nothing to keep account of. Of a larger one the room is taken as it comes: what a caller
/// says will come takes none.
pub const SMALL: usize = 256 * 1024;

impl Body {
    /// The same, where what is held of it counts towards the room that all share: now, or when it is gathered.
    pub fn in_room(mut self, room: &Room) -> Result<Self> {
        match &mut self {
            Self::Whole(bytes) if bytes.len() > SMALL => {
                let mut share = room.share();
                if !share.grow(bytes.len()) {
                    return Err(Error::NoRoom);
                }
                *bytes = Bytes::from_owner(Stored { bytes: std::mem::take(bytes), share });
            }
            Self::Whole(_) => (),
            Self::Fed(feed, _) => feed.share = Some(room.share()),
        }
        Ok(self)
    }

    /// Reads it to its end. Its share of the room is given back with the last of its bytes.
    pub async fn collect(self) -> Result<Bytes> {
        let (bytes, share) = self.collect_apart().await?;
        Ok(match share {
            Some(share) => Bytes::from_owner(Stored { bytes, share }),
            None => bytes,
        })
    }

    /// The same for somebody who gives its share of the room back himself.
    pub(crate) async fn collect_apart(self) -> Result<(Bytes, Option<Share>)> {
        let (mut feed, length) = match self {
            Self::Whole(bytes) => return Ok((bytes, None)),
            Self::Fed(feed, length) => (feed, length),
        };
        let declared = length.map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
        let first = if length.is_some() { declared.min(SMALL) } else { SMALL };
        let mut gathered =
            Gathered { bytes: Vec::with_capacity(first), declared, charged: SMALL, share: feed.share.take() };
        while let Some(piece) = feed.next().await {
            gathered.add(&piece?)?;
        }
        Ok(gathered.done())
    }
}

struct Gathered {
    bytes: Vec<u8>,
    declared: usize,
    /// What its capacity may be before more of the room is taken.
    charged: usize,
    share: Option<Share>,
}

impl Gathered {
    fn add(&mut self, piece: &[u8]) -> Result<()> {
        let needed = self.bytes.len() + piece.len();
        if needed > self.bytes.capacity() {
            // Twice what there was, so that it is moved seldom, but no more than is to come.
            let doubled = self.bytes.capacity() * 2;
            let next = if self.declared >= needed { doubled.min(self.declared) } else { doubled }.max(needed);
            if next > self.charged {
                if self.share.as_mut().is_some_and(|share| !share.grow(next - self.charged)) {
                    return Err(Error::NoRoom);
                }
                self.charged = next;
            }
            self.bytes.reserve_exact(next - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    fn done(self) -> (Bytes, Option<Share>) {
        (self.bytes.into(), self.share.filter(|_| self.charged > SMALL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::body::{End, feed};

    const PIECE: usize = 100 * 1024;

    /// What became of a body of so many pieces, of which this was declared, with the room that it leaves used.
    async fn gathered(room: &Room, pieces: usize, declared: Option<u64>) -> Result<Bytes> {
        let (feeder, feed) = feed(|| ());
        for _ in 0..pieces {
            feeder.push(vec![7; PIECE].into());
        }
        feeder.end(End::Complete);
        Body::Fed(feed, declared).in_room(room)?.collect().await
    }

    #[tokio::test]
    async fn small_bodies_take_no_room_and_large_ones_give_it_back_with_their_last_byte() {
        let room = Room::new(3 * SMALL, usize::MAX);
        assert_eq!((gathered(&room, 2, None).await.unwrap().len(), room.used()), (2 * PIECE, 0));
        let length = 4 * PIECE;
        let one = gathered(&room, 4, Some(length as u64)).await.unwrap();
        assert_eq!((one.len(), room.used()), (length, length - SMALL));
        let whole = Body::Whole(vec![7; 2 * SMALL].into()).in_room(&room).unwrap();
        assert_eq!(room.used(), length + SMALL);
        assert!(matches!(gathered(&room, 20, None).await, Err(Error::NoRoom)));
        assert!(matches!(Body::Whole(vec![7; 2 * SMALL].into()).in_room(&room), Err(Error::NoRoom)));
        let part = one.slice(1..2);
        drop((one, whole));
        assert_eq!((&part[..], room.used()), (&[7][..], length - SMALL));
        drop(part);
        assert_eq!(room.used(), 0);
    }

    #[tokio::test]
    async fn what_is_only_said_to_come_takes_no_room() {
        let room = Room::new(SMALL, usize::MAX);
        let bytes = gathered(&room, 1, Some(u64::MAX)).await.unwrap();
        assert_eq!((bytes.len(), room.used()), (PIECE, 0));
        let (feeder, feed) = feed(|| ());
        let body = Body::Fed(feed, None).in_room(&room).unwrap();
        let (lent, home) = body.lend();
        drop(lent);
        for _ in 0..8 {
            feeder.push(vec![7; PIECE].into());
        }
        let back = home.unwrap().back().unwrap();
        assert!(matches!(back.collect().await, Err(Error::NoRoom)));
        assert_eq!(room.used(), 0);
    }
}
