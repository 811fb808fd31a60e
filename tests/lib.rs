//! What the black-box tests share: building and starting the daemons in a folder of their own, and asking them things.
