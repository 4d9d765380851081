"""What a person looks at: subject and group reports."""
