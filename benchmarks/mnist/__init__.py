"""Parts of `spherical_mnist.py`: the images, one training, the tables and plots."""
