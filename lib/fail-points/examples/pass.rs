//! Reaches one fail point and prints that it continued.

fn main() {
    fail_points::fail_point("here");
    println!("passed");
}
