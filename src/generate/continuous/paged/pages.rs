//! The pages of a pool: which are free, which sequences hold, and which keep a prefix that another sequence may begin with.

use std::collections::{BTreeMap, HashMap};

/// The number of a page in a pool.
pub(super) type Page = u32;

/// The page that rows without a sequence write to. No sequence holds it.
pub(super) const UNUSED: Page = 0;

/// The tokens of a whole page, and the name of the prefix before it; `None` if it is the first.
type Prefix = (Option<u64>, Box<[i64]>);

/// A page that holds the end of a prefix.
struct Known {
    prefix: Prefix,
    /// The name of the prefix that ends with it.
    name: u64,
}

/// The pages of a pool. A page that keeps a whole prefix may be held by several sequences; one that is being written is held by one.
pub(super) struct Pages {
    /// The positions of a page.
    size: usize,
    /// The number of sequences that hold each page.
    holders: Vec<u32>,
    free: Vec<Page>,
    /// The pages that keep a prefix.
    known: HashMap<Page, Known>,
    by_prefix: HashMap<Prefix, Page>,
    /// The pages that keep a prefix and that no sequence holds, by when they were released.
    idle: BTreeMap<u64, Page>,
    released: HashMap<Page, u64>,
    next: u64,
}

/// The pages of a sequence, of which the first `known` keep prefixes.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub pages: Vec<Page>,
    known: usize,
    /// The name of the longest prefix.
    name: Option<u64>,
}

impl Pages {
    /// No pages, each of `size` positions.
    pub fn new(size: usize) -> Pages {
        Pages {
            size,
            holders: vec![1],
            free: vec![],
            known: HashMap::new(),
            by_prefix: HashMap::new(),
            idle: BTreeMap::new(),
            released: HashMap::new(),
            next: 0,
        }
    }

    /// The number of pages, [`UNUSED`] among them.
    pub fn count(&self) -> usize {
        self.holders.len()
    }
    /// The number of pages that sequences hold.
    pub fn held(&self) -> usize {
        self.count() - 1 - self.free.len() - self.idle.len()
    }

    /// Adds pages until there are `count`.
    pub fn grow(&mut self, count: usize) {
        let from = self.count();
        let more = u32::try_from(count).unwrap_or(u32::MAX);
        self.free.extend((from as u32..more).rev());
        self.holders.resize(count.max(from), 0);
    }

    /// Makes all pages free.
    pub fn clear(&mut self) {
        let count = self.count();
        *self = Pages { next: self.next, ..Pages::new(self.size) };
        self.grow(count);
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A free page. If there is none, the prefix that was released first is forgotten.
    pub fn take(&mut self) -> Option<Page> {
        let page = self.free.pop().or_else(|| {
            let (_, page) = self.idle.pop_first()?;
            self.released.remove(&page);
            self.forget(page);
            Some(page)
        })?;
        self.holders[page as usize] = 1;
        Some(page)
    }

    fn forget(&mut self, page: Page) {
        if let Some(k) = self.known.remove(&page) {
            self.by_prefix.remove(&k.prefix);
        }
    }

    /// The pages that keep the longest prefix of `tokens`, of at most `most` tokens, for one more sequence.
    pub fn prefix(&mut self, tokens: &[i64], most: usize) -> Held {
        let mut held = Held::default();
        for part in tokens[..most.min(tokens.len())].chunks_exact(self.size) {
            let Some(page) = self.by_prefix.get(&(held.name, part.into())).copied() else { break };
            held.name = self.known.get(&page).map(|k| k.name);
            held.pages.push(page);
            self.hold(page);
        }
        held.known = held.pages.len();
        held
    }

    fn hold(&mut self, page: Page) {
        self.holders[page as usize] += 1;
        if let Some(at) = self.released.remove(&page) {
            self.idle.remove(&at);
        }
    }

    /// Lets other sequences begin with the whole pages of `tokens`, which are in `held`.
    pub fn keep(&mut self, held: &mut Held, tokens: &[i64]) {
        for (i, part) in tokens.chunks_exact(self.size).enumerate().skip(held.known) {
            let Some(page) = held.pages.get(i).copied() else { return };
            let prefix: Prefix = (held.name, part.into());
            held.known = i + 1;
            if let Some(other) = self.by_prefix.get(&prefix) {
                // Another sequence has made the same page.
                held.name = self.known.get(other).map(|k| k.name);
                continue;
            }
            let name = self.name();
            self.by_prefix.insert(prefix.clone(), page);
            self.known.insert(page, Known { prefix, name });
            held.name = Some(name);
        }
    }

    /// Releases the pages of a sequence. Those that keep a prefix stay until there is no other page.
    pub fn release(&mut self, held: &mut Held) {
        // The end of a prefix is of no use without its beginning, so that it is forgotten first.
        for page in std::mem::take(held).pages.into_iter().rev() {
            let holders = &mut self.holders[page as usize];
            *holders -= 1;
            if *holders > 0 {
                continue;
            }
            if self.known.contains_key(&page) {
                let at = self.name();
                self.idle.insert(at, page);
                self.released.insert(page, at);
            } else {
                self.free.push(page);
            }
        }
    }

    /// Releases the pages of a sequence and forgets what they keep. Returns those that no other sequence holds; they are free behind
    /// [`Pages::put_back`].
    pub fn forget_all(&mut self, held: &mut Held) -> Vec<Page> {
        let pages = std::mem::take(held).pages;
        let mut alone = vec![];
        for page in pages {
            self.forget(page);
            let holders = &mut self.holders[page as usize];
            *holders -= 1;
            if *holders == 0 {
                alone.push(page);
            }
        }
        alone
    }

    /// Makes a page free.
    pub fn put_back(&mut self, page: Page) {
        self.free.push(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    fn filled(pages: &mut Pages, tokens: &[i64]) -> Held {
        let mut held = pages.prefix(tokens, tokens.len() - 1);
        while held.pages.len() * pages.size < tokens.len() {
            held.pages.push(pages.take().unwrap());
        }
        pages.keep(&mut held, tokens);
        held
    }

    #[test]
    fn prefixes_are_found_until_their_pages_are_taken() {
        let mut pages = Pages::new(2);
        pages.grow(6);
        let mut a = filled(&mut pages, &[1, 2, 3, 4, 5]);
        assert_eq!((a.pages.len(), pages.held()), (3, 3));
        // Whole pages are shared while the sequence runs and after its end; the last token is never taken from a page.
        let mut b = pages.prefix(&[1, 2, 3, 4], 3);
        assert_eq!(b.pages, a.pages[..1]);
        let (first, second) = (a.pages[0], a.pages[1]);
        pages.release(&mut a);
        assert_eq!(pages.held(), 1);
        pages.release(&mut b);
        assert_eq!(pages.prefix(&[1, 2, 3, 9], 4).pages, [first]);
        let mut c = pages.prefix(&[1, 2, 3, 4, 9], 4);
        assert_eq!(c.pages, [first, second]);
        pages.release(&mut c);
        pages.release(&mut Held { pages: vec![first], ..Held::default() });
        // The end of a prefix that is not held is forgotten first.
        let taken: Vec<Page> = (0..4).map(|_| pages.take().unwrap()).collect();
        assert!(taken.contains(&second) && !taken.contains(&first), "{taken:?}");
        assert_eq!(pages.prefix(&[1, 2, 3, 4, 9], 4).pages, [first]);
        assert_eq!(pages.take(), None);
    }

    /// No page is lost or held twice, whatever sequences come and go.
    #[test]
    fn pages_are_counted() {
        let mut rng = Rng::new(3, "pages");
        let mut below = |n: usize| (rng.bits() >> 33) as usize % n;
        let mut pages = Pages::new(2);
        pages.grow(40);
        let mut running: Vec<(Held, Vec<i64>)> = vec![];
        for _ in 0..2000 {
            if running.len() < 4 && below(2) == 0 {
                let tokens: Vec<i64> = (0..1 + below(9)).map(|_| below(2) as i64).collect();
                running.push((filled(&mut pages, &tokens), tokens));
            } else if !running.is_empty() {
                let (mut held, _) = running.swap_remove(below(running.len()));
                pages.release(&mut held);
            }
            let mut written = vec![];
            for (held, tokens) in &running {
                // A page that several sequences hold has the same prefix in all of them.
                for (i, page) in held.pages.iter().enumerate() {
                    written.push((*page, tokens[..tokens.len().min(2 * i + 2)].to_vec()));
                }
            }
            written.sort();
            written.dedup();
            assert!(written.windows(2).all(|w| w[0].0 != w[1].0), "{written:?}");
            assert_eq!(pages.held(), written.len());
        }
        running.iter_mut().for_each(|(held, _)| pages.release(held));
        assert_eq!(pages.held(), 0);
        assert_eq!((0..100).map_while(|_| pages.take()).count(), 39);
    }
}
