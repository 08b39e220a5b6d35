//! Passes one point and says that it is still there.

fn main() {
    fail_points::fail_point("here");
    println!("passed");
}
